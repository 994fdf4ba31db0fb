package command

import (
	"cmp"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/cmd/penstock/internal/serve/settings"
	"github.com/penstock/penstock/cmd/penstock/internal/text/printable"
	"github.com/penstock/penstock/cmd/penstock/internal/tools/cases"
	"github.com/penstock/penstock/internal/boundedfile"
	"github.com/penstock/penstock/policy"
	"github.com/penstock/penstock/policy/policyfile"
)

func newTest(algorithms []*algorithm.Algorithm) *cobra.Command {
	var output string
	c := &cobra.Command{
		Use:   "test [flags] POLICY CASES...",
		Short: "Test a policy with example requests",
		Long: "test reads cases from YAML files: requests, and the decisions that the policy should make for them. It reports each\n" +
			"decision that differs, and the rules that no case reaches. It runs in memory with a simulated clock, so it needs no server\n" +
			"and does not wait. The exit status is 0 if all cases pass, 6 if one fails, and 4 if a file is not valid.",
		Example: "  penstock test rules.yaml cases.yaml\n  penstock test -o junit rules.yaml cases/*.yaml > report.xml",
		Args:    argumentCount(2, math.MaxInt, "a policy and files with cases, as in: penstock test rules.yaml cases.yaml"),
		RunE: func(c *cobra.Command, args []string) error {
			report, err := runCases(args[0], args[1:], algorithms)
			if err != nil {
				return err
			}
			switch output {
			case "json":
				err = writeJSON(c.OutOrStdout(), report)
			case "junit":
				err = report.writeJUnit(c.OutOrStdout())
			default:
				report.print(c.OutOrStdout())
			}
			if err == nil && report.Failed > 0 {
				return statusOnly(exitProblem)
			}
			return err
		},
		ValidArgsFunction: completeYAML,
	}
	rejectConfigFlag(c, "penstock test rules.yaml cases.yaml")
	addOutput(c, &output, "text", "json", "junit")
	return c
}

type caseReport struct {
	Passed    int            `json:"passed"`
	Failed    int            `json:"failed"`
	Unreached []string       `json:"unreached_rules"` // rules that have limits, but neither charge nor deny a request of a case
	Cases     []cases.Result `json:"cases"`
}

func runCases(policyName string, caseNames []string, algorithms []*algorithm.Algorithm) (*caseReport, error) {
	p, err := policyfile.Load(policyName, settings.PolicyOptions(algorithms...))
	if err != nil {
		return nil, cmp.Or(checkOrder(policyName, caseNames), err)
	}
	defer p.Close()
	report := &caseReport{Unreached: []string{}, Cases: []cases.Result{}}
	var files []*cases.File
	var mistakes policyfile.Errors
	for _, name := range caseNames {
		text, err := boundedfile.Read(name, boundedfile.MaxPolicy)
		if err != nil {
			return nil, withStatus(exitInvalid, fmt.Errorf("cannot read the cases: %w", err))
		}
		f, err := cases.Parse(name, text, p.Rules)
		var ofFile policyfile.Errors
		switch {
		case errors.As(err, &ofFile):
			mistakes = append(mistakes, ofFile...)
		case err != nil:
			return nil, err
		}
		files = append(files, f)
	}
	if len(mistakes) > 0 {
		return nil, mistakes
	}
	reached := make(map[string]bool)
	for _, f := range files {
		results, err := f.Run()
		if err != nil {
			return nil, err
		}
		for _, r := range results {
			for _, name := range r.Rules {
				reached[name] = true
			}
			if len(r.Failures) == 0 {
				report.Passed++
			} else {
				report.Failed++
			}
		}
		report.Cases = append(report.Cases, results...)
	}
	report.Unreached = append(report.Unreached, findUnreached(p.Rules, reached)...)
	return report, nil
}

// checkOrder returns an error if the file in the place of the policy has cases.
func checkOrder(policyName string, caseNames []string) error {
	hasCases := func(name string) bool {
		text, err := boundedfile.Read(name, boundedfile.MaxPolicy)
		return err == nil && cases.HasCases(text)
	}
	if !hasCases(policyName) {
		return nil
	}
	if at := slices.IndexFunc(caseNames, func(name string) bool { return !hasCases(name) }); at >= 0 {
		return withStatus(exitUsage, fmt.Errorf("%s has cases, but the policy comes first; are the files swapped? Then write: penstock test %s %s", policyName, caseNames[at], policyName))
	}
	return withStatus(exitUsage, fmt.Errorf("%s has cases; write the policy before it, as in: penstock test rules.yaml %s", policyName, policyName))
}

// findUnreached returns the sorted names of the rules for caseReport.Unreached.
func findUnreached(rules *policy.Rules, reached map[string]bool) (names []string) {
	for _, r := range rules.Spec().Rules {
		if !reached[r.Name] && !r.Unlimited {
			names = append(names, r.Name)
		}
	}
	slices.Sort(names)
	return names
}

func (r *caseReport) print(out io.Writer) {
	for _, c := range r.Cases {
		if len(c.Failures) == 0 {
			printable.Fprintf(out, "ok    %s: %s (%d %s)\n", c.File, c.Name, c.Requests, plural(int(c.Requests), "request"))
			continue
		}
		printable.Fprintf(out, "FAIL  %s: %s\n", c.File, c.Name)
		for _, f := range c.Failures {
			printable.Fprintf(out, "      %s:%d:%d: %s\n", c.File, f.Line, f.Column, f.Message)
		}
	}
	for _, name := range r.Unreached {
		printable.Fprintf(out, "note  no case reaches rule %s\n", name)
	}
	printable.Fprintf(out, "%d passed, %d failed\n", r.Passed, r.Failed)
}

// The JUnit form of a report: one test suite, with a test case for each case of the files.
type (
	junitSuite struct {
		XMLName  xml.Name    `xml:"testsuite"`
		Name     string      `xml:"name,attr"`
		Tests    int         `xml:"tests,attr"`
		Failures int         `xml:"failures,attr"`
		Cases    []junitCase `xml:"testcase"`
	}
	junitCase struct {
		Class    string         `xml:"classname,attr"`
		Name     string         `xml:"name,attr"`
		File     string         `xml:"file,attr"`
		Line     int            `xml:"line,attr"`
		Failures []junitFailure `xml:"failure"`
	}
	junitFailure struct {
		Message string `xml:"message,attr"`
		Text    string `xml:",chardata"`
	}
)

func (r *caseReport) writeJUnit(out io.Writer) error {
	suite := junitSuite{Name: "penstock test", Tests: len(r.Cases), Failures: r.Failed}
	for _, c := range r.Cases {
		one := junitCase{Class: c.File, Name: c.Name, File: c.File, Line: c.Line}
		for _, f := range c.Failures {
			one.Failures = append(one.Failures, junitFailure{f.Message, fmt.Sprintf("%s:%d:%d: %s", c.File, f.Line, f.Column, f.Message)})
		}
		suite.Cases = append(suite.Cases, one)
	}
	if _, err := io.WriteString(out, xml.Header); err != nil {
		return err
	}
	e := xml.NewEncoder(out)
	e.Indent("", "  ")
	if err := e.Encode(suite); err != nil {
		return err
	}
	_, err := io.WriteString(out, "\n")
	return err
}
