package command

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"strings"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/cmd/penstock/internal/rpc/envoyconfig"
	"github.com/penstock/penstock/cmd/penstock/internal/serve/settings"
	"github.com/penstock/penstock/cmd/penstock/internal/text/printable"
	"github.com/penstock/penstock/httplimit/forwardauth"
	"github.com/penstock/penstock/internal/panicked"
	"github.com/penstock/penstock/internal/policy/describe"
	"github.com/penstock/penstock/policy"
	"github.com/penstock/penstock/policy/policyfile"
)

func newValidate(algorithms []*algorithm.Algorithm) *cobra.Command {
	var output, envoyFolder string
	var isVerbose, isStrict, canMergeDomains bool
	c := &cobra.Command{
		Use:   "validate FILE...",
		Short: "Check policy files and list all errors",
		Long: "validate reads policy files like serve does. It prints each error as file:line:column, what is wrong, and how to fix it.\n" +
			"Warnings are about likely mistakes, and serve logs them too. Hints suggest what to add to a valid policy.\n" +
			"With --strict, warnings are errors. Hints never are.\n" +
			"It replaces ${NAME} in the files by environment variables, like serve. With --envoy-config, it also reads the files of\n" +
			"envoyproxy/ratelimit in a folder. The exit status is 0 if all files are valid, else 4.",
		Example: "  penstock validate rules.yaml\n  penstock validate -v rules.yaml        # also describes the rules\n" +
			"  penstock validate --strict rules.yaml  # in CI\n  penstock validate --envoy-config config/ratelimit",
		Args: func(c *cobra.Command, args []string) error {
			if envoyFolder != "" {
				return nil
			}
			return argumentCount(1, math.MaxInt, "the name of a policy file, as in: penstock validate rules.yaml")(c, args)
		},
		RunE: func(c *cobra.Command, files []string) error {
			all := []finding{}
			invalidCount := 0
			add := func(name string, r result) {
				if isStrict {
					warningCount := makeWarningsErrors(r.found)
					r.isValid = r.isValid && warningCount == 0
				}
				if !r.isValid {
					invalidCount++
				}
				all = append(all, r.found...)
				if output == "text" {
					r.print(c.OutOrStdout(), name, isVerbose)
				}
			}
			for _, file := range files {
				r, err := validate(file, algorithms)
				if crash := (*panicked.Error)(nil); errors.As(err, &crash) {
					fmt.Fprintf(c.ErrOrStderr(), "%s", crash.Stack)
				}
				add(file, r)
			}
			if envoyFolder != "" {
				add(envoyFolder, validateEnvoy(envoyFolder, canMergeDomains))
			}
			if output == "json" {
				if err := writeJSON(c.OutOrStdout(), struct {
					Valid    bool      `json:"valid"`
					Findings []finding `json:"findings"`
				}{invalidCount == 0, all}); err != nil {
					return err
				}
			}
			if invalidCount > 0 {
				return statusOnly(exitInvalid)
			}
			return nil
		},
		ValidArgsFunction: completeYAML,
	}
	rejectConfigFlag(c, "penstock validate rules.yaml")
	addOutput(c, &output)
	c.Flags().BoolVarP(&isVerbose, "verbose", "v", false, "also describe the rules of each policy")
	c.Flags().BoolVar(&isStrict, "strict", false, "treat warnings as errors")
	c.Flags().StringVar(&envoyFolder, "envoy-config", "", "folder with files of envoyproxy/ratelimit")
	c.Flags().BoolVar(&canMergeDomains, "envoy-merge-domains", false, "accept several of these files with the same domain")
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

// place returns the file, with the line and the column if they are known.
func (f *finding) place() string {
	switch {
	case f.Line == 0:
		return f.File
	case f.Column == 0:
		return fmt.Sprintf("%s:%d", f.File, f.Line)
	}
	return fmt.Sprintf("%s:%d:%d", f.File, f.Line, f.Column)
}

// A result is what was found in a policy file, or in a folder for Envoy.
type result struct {
	found       []finding
	isValid     bool
	description string // of the rules
	summary     string // what a valid file has, such as "3 rules"
}

// validate checks a policy file. If the file is not valid, err is the reason, and the result has
// the mistakes.
func validate(file string, algorithms []*algorithm.Algorithm) (r result, err error) {
	p, err := policyfile.Load(file, settings.PolicyOptions(algorithms...))
	var mistakes policyfile.Errors
	var pathErr *fs.PathError
	switch {
	case err == nil:
		defer p.Close()
		for _, w := range p.Warnings {
			r.found = append(r.found, finding{Severity: "warning", File: w.File, Line: w.Line, Column: w.Column, Message: w.Message})
		}
		for _, h := range p.Hints {
			r.found = append(r.found, finding{Severity: "hint", File: h.File, Line: h.Line, Column: h.Column, Message: h.Message})
		}
		// A hint, because a flag of serve decides whether it has --api. Only the first line is shown,
		// which is about the first such limit.
		if err := forwardauth.Check(p.Rules); err != nil {
			reason, _, _ := strings.Cut(strings.TrimPrefix(textOf(err), "forwardauth: "), "\n")
			r.found = append(r.found, finding{Severity: "hint", File: file, Message: "serve --api does not load this policy: " + reason})
		}
		n := len(p.Rules.Spec().Rules)
		regionErr := checkRegions(p.Rules)
		if regionErr != nil {
			r.found = append(r.found, finding{Severity: "error", File: file, Message: textOf(regionErr)})
		}
		r.isValid, r.description = regionErr == nil, describe.Spec(p.Rules.Spec())
		r.summary = fmt.Sprintf("%d %s, digest %s", n, plural(n, "rule"), p.Digest)
	case errors.As(err, &mistakes):
		for _, e := range mistakes {
			r.found = append(r.found, finding{Severity: "error", File: e.File, Line: e.Line, Column: e.Column, Message: e.Message})
		}
	case errors.As(err, &pathErr):
		r.found = []finding{{Severity: "error", File: file, Message: "cannot read the file: " + pathErr.Err.Error() + "; write the name of a policy file"}}
	default:
		r.found = []finding{{Severity: "error", File: file, Message: textOf(err)}}
	}
	return r, err
}

// checkRegions returns an error if the environment or the file says how many regions there are, and
// a limit across regions has no share for one of them.
func checkRegions(rules *policy.Rules) error {
	section, _ := policy.SectionOf[*settings.Section](rules)
	setup := section.Regions()
	for _, plan := range rules.Plans() {
		if err := setup.Check(plan); err != nil {
			return err
		}
	}
	return nil
}

func validateEnvoy(folder string, canMergeDomains bool) (r result) {
	config, err := envoyconfig.LoadDir(folder, envoyconfig.Options{MergeDomains: canMergeDomains})
	var mistakes envoyconfig.Errors
	switch {
	case err == nil:
		for _, w := range config.Warnings() {
			r.found = append(r.found, finding{Severity: "warning", File: w.File, Line: w.Line, Message: w.Text})
		}
		domains, limits := len(config.Domains()), len(config.Limits())
		r.isValid, r.description = true, config.String()
		r.summary = fmt.Sprintf("%d %s, %d %s", domains, plural(domains, "domain"), limits, plural(limits, "limit"))
	case errors.As(err, &mistakes):
		for _, e := range mistakes {
			r.found = append(r.found, finding{Severity: "error", File: e.File, Line: e.Line, Message: e.What + "; " + e.Remedy})
		}
	default:
		r.found = []finding{{Severity: "error", File: folder, Message: textOf(err)}}
	}
	return r
}

func makeWarningsErrors(found []finding) (warnings int) {
	for i := range found {
		if found[i].Severity == "warning" {
			found[i].Severity = "error"
			warnings++
		}
	}
	return warnings
}

// print prints the findings, and what a valid file has. name is the name of the file or folder.
func (r *result) print(out io.Writer, name string, isVerbose bool) {
	for _, f := range r.found {
		severity := ""
		if f.Severity != "error" {
			severity = f.Severity + ": "
		}
		printable.Fprintf(out, "%s: %s%s\n", f.place(), severity, f.Message)
	}
	if !r.isValid {
		return
	}
	if isVerbose {
		fmt.Fprint(out, printable.Text(r.description))
	}
	printable.Fprintf(out, "%s: valid, %s\n", name, r.summary)
}

// printReport prints a report as JSON, or else by asText.
func printReport(out io.Writer, output string, report any, asText func(io.Writer) error) error {
	if output == "json" {
		return writeJSON(out, report)
	}
	return asText(out)
}

func plural(n int, word string) string {
	if n == 1 {
		return word
	}
	return word + "s"
}

func writeJSON(out io.Writer, v any) error {
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return err
	}
	_, err := out.Write(printable.JSON(text.Bytes()))
	return err
}

func completeYAML(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return []string{"yaml", "yml"}, cobra.ShellCompDirectiveFilterFileExt
}
