package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/cmd/penstock/internal/settings"
	"github.com/penstock/penstock/policy"
)

// newValidate is the command that shows the mistakes of policies.
func newValidate() *cobra.Command {
	var output string
	var verbose bool
	c := &cobra.Command{
		Use:   "validate FILE...",
		Short: "Show every mistake of a policy, with its place and how to mend it",
		Long: "validate reads policies as serve does, and shows every mistake at once: file:line:column, what is wrong, and how to mend it.\n" +
			"Variables of the environment are replaced as in serve. The exit status is 0 if all files can be used, and 4 if one cannot.",
		Example: "  penstock validate rules.yaml\n  penstock validate -v rules.yaml   # and what it means",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, files []string) error {
			if err := checkOutput(output, "text", "json"); err != nil {
				return err
			}
			all := []finding{}
			invalid := 0
			for _, file := range files {
				found, rules, err := validate(file)
				if panicked := (*policy.PanicError)(nil); errors.As(err, &panicked) {
					fmt.Fprintf(c.ErrOrStderr(), "%s", panicked.Stack)
				}
				if rules == nil {
					invalid++
				}
				all = append(all, found...)
				if output == "text" {
					describe(c.OutOrStdout(), file, found, rules, verbose)
				}
			}
			if output == "json" {
				if err := writeJSON(c.OutOrStdout(), struct {
					Valid    bool      `json:"valid"`
					Findings []finding `json:"findings"`
				}{invalid == 0, all}); err != nil {
					return err
				}
			}
			if invalid > 0 {
				return silent(exitInvalid)
			}
			return nil
		},
		ValidArgsFunction: completeYAML,
	}
	c.Flags().StringVarP(&output, "output", "o", "text", "text for people, json for programs")
	_ = c.RegisterFlagCompletionFunc("output", completeOutput)
	c.Flags().BoolVarP(&verbose, "verbose", "v", false, "show what each policy means, too")
	return c
}

// A finding is a mistake, or a warning.
type finding struct {
	Severity string `json:"severity"` // "error" or "warning"
	File     string `json:"file"`
	Line     int    `json:"line,omitempty"`
	Column   int    `json:"column,omitempty"`
	Message  string `json:"message"`
}

func validate(file string) (found []finding, rules *policy.Rules, err error) {
	rules, err = policy.Load(file)
	var mistakes policy.Errors
	var unread *fs.PathError
	switch {
	case err == nil:
		defer rules.Close()
		for _, m := range settings.Check(rules.Server()) {
			line, column := rules.ServerPlace(m.Field)
			found = append(found, finding{"error", file, line, column, m.Err.Error()})
		}
		if len(found) > 0 {
			slices.SortFunc(found, func(a, b finding) int { return cmp.Or(a.Line-b.Line, a.Column-b.Column) })
			return found, nil, nil
		}
		for _, w := range rules.Warnings() {
			found = append(found, finding{"warning", w.File, w.Line, w.Column, w.Message})
		}
	case errors.As(err, &mistakes):
		for _, e := range mistakes {
			found = append(found, finding{"error", e.File, e.Line, e.Column, e.Message})
		}
	case errors.As(err, &unread):
		found = []finding{{Severity: "error", File: file, Message: "it cannot be read: " + unread.Err.Error() + "; name the file of a policy"}}
	default:
		found = []finding{{Severity: "error", File: file, Message: textOf(err)}}
	}
	return found, rules, err
}

func describe(out io.Writer, file string, found []finding, rules *policy.Rules, verbose bool) {
	for _, f := range found {
		e := policy.Error{File: f.File, Line: f.Line, Column: f.Column, Message: f.Message}
		if f.Severity == "warning" {
			e.Message = "warning: " + e.Message
		}
		fmt.Fprintln(out, e.Error())
	}
	if rules == nil {
		return
	}
	if verbose {
		fmt.Fprint(out, rules)
	}
	n := len(rules.Rules())
	fmt.Fprintf(out, "%s: valid, %d %s, digest %s\n", file, n, plural(n, "rule"), rules.Digest())
}

func plural(n int, word string) string {
	if n == 1 {
		return word
	}
	return word + "s"
}

func writeJSON(out io.Writer, v any) error {
	e := json.NewEncoder(out)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

var completeOutput = cobra.FixedCompletions([]string{"text", "json"}, cobra.ShellCompDirectiveNoFileComp)

func completeYAML(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return []string{"yaml", "yml"}, cobra.ShellCompDirectiveFilterFileExt
}
