package httplimit

import (
	"strings"
	"testing"
)

// The functions that a template may use suffice for lists, conditions, JSON and HTML. Templates
// with forbidden functions are in testdata/bad of package policyfile.
func TestTemplatesMayHaveFieldsConditionsAndOneLoop(t *testing.T) {
	for _, body := range []string{
		`{"wait":{{.RetryAfter}},"rule":"{{.Rule}}"}`,
		`{{if .RetryAfter}}{{.RetryAfterMS}} ms{{else if eq .Status 503}}busy{{else}}never{{end}}`,
		`[{{range $i, $p := .Policies}}{{if $i}},{{end}}"{{$p}}"{{end}}]`,
		`{{range .Policies}}{{.}} {{else}}none{{end}}{{range $.Policies}}{{if eq . "a.b"}}{{break}}{{end}}{{end}}`,
		`{{$first := index .Policies 0}}{{/* one */}}{{if and (gt (len .Policies) 1) (not (lt .Status 429))}}{{$first}} and more{{end}}`,
		strings.Repeat("x ", maxTemplateBytes/2),
	} {
		c := Config{Denied: DeniedConfig{Body: body}}
		if err := c.finish(); err != nil {
			t.Errorf("%.80q: the error is %v; want no error", body, err)
		}
	}
	c := Config{Denied: DeniedConfig{Body: `{{with .Rule}}{{.}}{{end}}`}}
	if err := c.finish(); err == nil || !strings.Contains(err.Error(), "write {{if ...}}, and name the field in it") {
		t.Errorf("%q: the error is %v; want one that names {{if}} instead of {{with}}", c.Denied.Body, err)
	}
	for _, body := range []string{"{{range .Policies | html}}{{end}}", "{{range index .Policies 0}}{{end}}", "{{range .Rule}}{{end}}"} {
		c := Config{Denied: DeniedConfig{Body: body}}
		if err := c.finish(); err == nil || !strings.Contains(err.Error(), "range") {
			t.Errorf("%q: the error is %v; want one that refuses the range", body, err)
		}
	}
	c = Config{Denied: DeniedConfig{Body: strings.Repeat("x ", maxTemplateBytes/2) + "x"}}
	if err := c.finish(); err == nil || !strings.Contains(err.Error(), "write at most 65536") {
		t.Errorf("a template of %d bytes: the error is %v; want an error with the bound", maxTemplateBytes+1, err)
	}
}
