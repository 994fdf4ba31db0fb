package policyfile

import (
	"errors"
	"path/filepath"

	"github.com/penstock/penstock/internal/policy/jwt"
	"github.com/penstock/penstock/internal/wording"
)

func (c *compiler) compileTokens() {
	if c.config.Tokens == nil {
		return
	}
	t, dir := c.config.Tokens, filepath.Dir(c.file)
	for _, warning := range t.Warnings() {
		c.warn(t, "%s", warning)
	}
	if c.isWritten(&t.Leeway) && t.Leeway == 0 {
		c.fail(&t.Leeway, "the leeway is 0s, and no two clocks agree; write a time from 1ms to 5m, or remove it to use %s", wording.Period(jwt.DefaultLeeway))
	}
	if c.isWritten(&t.Refresh) && t.Refresh == 0 {
		c.fail(&t.Refresh, "the keys would never be read again; write a time from 1m to 24h, or remove it to use %s", wording.Period(jwt.DefaultRefresh))
	}
	verifier, err := jwt.New(*t, dir)
	for _, one := range flatten(err) {
		c.fail(c.tokenField(one), "%v", one)
	}
	if err == nil {
		c.verifier, c.spec.Tokens = verifier, verifier.Tokens()
		c.files = append(c.files, t.Files(dir)...)
	}
}

func flatten(err error) (list []error) {
	if err == nil {
		return nil
	}
	several, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	for _, one := range several.Unwrap() {
		list = append(list, flatten(one)...)
	}
	return list
}

// tokenField returns the field that has the mistake, or the whole section if the field was not
// written.
func (c *compiler) tokenField(mistake error) any {
	var wrong *jwt.FieldError
	if !errors.As(mistake, &wrong) {
		return c.config.Tokens
	}
	if f, ok := fieldsIn(c.config.Tokens)[wrong.Field]; ok && c.isWritten(f.value) {
		return f.value
	}
	return c.config.Tokens
}
