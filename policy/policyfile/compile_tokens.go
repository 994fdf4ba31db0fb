package policyfile

import (
	"path/filepath"
	"reflect"
	"strings"

	"github.com/penstock/penstock/internal/wording"
	"github.com/penstock/penstock/policy/jwt"
)

func (c *compiler) compileTokens() {
	if c.config.Tokens == nil {
		return
	}
	t, dir := c.config.Tokens, filepath.Dir(c.file)
	for _, warning := range t.Warnings() {
		c.warn(t, "%s", warning)
	}
	if c.written(&t.Leeway) && t.Leeway == 0 {
		c.fail(&t.Leeway, "the leeway is 0s, and no two clocks agree; write a time from 1ms to 5m, or leave it out for %s", wording.Period(jwt.DefaultLeeway))
	}
	if c.written(&t.Refresh) && t.Refresh == 0 {
		c.fail(&t.Refresh, "the keys would never be read again; write a time from 1m to 24h, or leave it out for %s", wording.Period(jwt.DefaultRefresh))
	}
	verifier, err := jwt.New(*t, dir)
	for _, one := range flat(err) {
		c.fail(c.tokenField(one), "%v", one)
	}
	if err == nil {
		c.verifier, c.spec.Tokens = verifier, verifier.Tokens()
		c.files = append(c.files, t.Files(dir)...)
	}
}

// flat is an error as the list of those that were joined in it.
func flat(err error) (list []error) {
	if err == nil {
		return nil
	}
	several, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	for _, one := range several.Unwrap() {
		list = append(list, flat(one)...)
	}
	return list
}

// tokenField is where the field was written of which an error speaks: "tokens.secret: ...".
func (c *compiler) tokenField(err error) any {
	name, _, _ := strings.Cut(strings.TrimPrefix(err.Error(), "tokens."), ":")
	v := reflect.ValueOf(c.config.Tokens).Elem()
	if field, ok := fieldsOf(v.Type())[name]; ok && c.written(v.Field(field).Addr().Interface()) {
		return v.Field(field).Addr().Interface()
	}
	return c.config.Tokens
}
