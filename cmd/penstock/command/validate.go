package command

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/cmd/penstock/internal/settings"
	"github.com/penstock/penstock/internal/panicked"
	"github.com/penstock/penstock/policy/describe"
	"github.com/penstock/penstock/policy/policyfile"
)

// newValidate makes the command that checks policies.
func newValidate(algorithms []*algorithm.Algorithm) *cobra.Command {
	var output string
	var verbose, isStrict bool
	c := &cobra.Command{
		Use:   "validate FILE...",
		Short: "Check policy files and list all errors",
		Long: "validate reads policy files like serve does. It prints each error as file:line:column, what is wrong, and how to fix it.\n" +
			"Warnings are about likely mistakes, and serve logs them too. Hints are about what a valid policy may miss.\n" +
			"With --strict, warnings are errors. Hints never are.\n" +
			"It replaces ${NAME} in the files by environment variables, like serve. The exit status is 0 if all files are valid, else 4.",
		Example: "  penstock validate rules.yaml\n  penstock validate -v rules.yaml        # also describes the rules\n" +
			"  penstock validate --strict rules.yaml  # in CI",
		Args: needsArgument(1, math.MaxInt, "the name of a policy file, as in: penstock validate rules.yaml"),
		RunE: func(c *cobra.Command, files []string) error {
			if err := checkOutput(output, "text", "json"); err != nil {
				return err
			}
			all := []finding{}
			invalid := 0
			for _, file := range files {
				found, p, err := validate(file, algorithms)
				if crash := (*panicked.Error)(nil); errors.As(err, &crash) {
					fmt.Fprintf(c.ErrOrStderr(), "%s", crash.Stack)
				}
				if isStrict && makeErrors(found) > 0 {
					p = nil
				}
				if p == nil {
					invalid++
				}
				all = append(all, found...)
				if output == "text" {
					printFindings(c.OutOrStdout(), file, found, p, verbose)
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
	c.Flags().StringVarP(&output, "output", "o", "text", "output format: text or json")
	_ = c.RegisterFlagCompletionFunc("output", completeOutput)
	c.Flags().BoolVarP(&verbose, "verbose", "v", false, "also describe the rules of each policy")
	c.Flags().BoolVar(&isStrict, "strict", false, "treat warnings as errors")
	return c
}

// A finding is an error, a warning or a hint about a policy.
type finding struct {
	Severity string `json:"severity"` // "error", "warning" or "hint"
	File     string `json:"file"`
	Line     int    `json:"line,omitempty"`
	Column   int    `json:"column,omitempty"`
	Message  string `json:"message"`
}

func validate(file string, algorithms []*algorithm.Algorithm) (found []finding, p *policyfile.Policy, err error) {
	p, err = policyfile.Load(file, settings.PolicyOptions(algorithms...))
	var mistakes policyfile.Errors
	var unread *fs.PathError
	switch {
	case err == nil:
		defer p.Close()
		for _, w := range p.Warnings {
			found = append(found, finding{"warning", w.File, w.Line, w.Column, w.Message})
		}
		for _, h := range p.Hints {
			found = append(found, finding{"hint", h.File, h.Line, h.Column, h.Message})
		}
	case errors.As(err, &mistakes):
		for _, e := range mistakes {
			found = append(found, finding{"error", e.File, e.Line, e.Column, e.Message})
		}
	case errors.As(err, &unread):
		found = []finding{{Severity: "error", File: file, Message: "cannot read the file: " + unread.Err.Error() + "; write the name of a policy file"}}
	default:
		found = []finding{{Severity: "error", File: file, Message: textOf(err)}}
	}
	return found, p, err
}

// makeErrors turns warnings into errors, and returns how many there were.
func makeErrors(found []finding) (warnings int) {
	for i := range found {
		if found[i].Severity == "warning" {
			found[i].Severity = "error"
			warnings++
		}
	}
	return warnings
}

func printFindings(out io.Writer, file string, found []finding, p *policyfile.Policy, verbose bool) {
	for _, f := range found {
		e := policyfile.Error{File: f.File, Line: f.Line, Column: f.Column, Message: f.Message}
		if f.Severity != "error" {
			e.Message = f.Severity + ": " + e.Message
		}
		fmt.Fprintln(out, e.Error())
	}
	if p == nil {
		return
	}
	if verbose {
		fmt.Fprint(out, describe.Spec(p.Rules.Spec()))
	}
	n := len(p.Rules.Rules())
	fmt.Fprintf(out, "%s: valid, %d %s, digest %s\n", file, n, plural(n, "rule"), p.Digest)
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
