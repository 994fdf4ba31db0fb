package command

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/cmd/penstock/internal/serve/settings"
	"github.com/penstock/penstock/cmd/penstock/internal/text/printable"
	"github.com/penstock/penstock/cmd/penstock/internal/tools/promote"
	"github.com/penstock/penstock/internal/boundedfile"
	"github.com/penstock/penstock/policy/policyfile"
)

func newPromote(algorithms []*algorithm.Algorithm) *cobra.Command {
	var config string
	var isDryRun bool
	c := &cobra.Command{
		Use:   "promote RULE --config FILE",
		Short: "Enforce the shadow or the candidate of a rule",
		Long: "promote edits a policy file. It removes shadow: true from a rule and its limits, and moves the numbers of each candidate into\n" +
			"its limit. All other text stays as it is, with the comments, except those within the candidate. RULE may be one limit, as in\n" +
			"search.second. promote prints the changed lines. It writes only a valid policy, and replaces the file in one step; instances\n" +
			"of serve then load it.",
		Example: "  penstock promote search --config rules.yaml --dry-run\n  penstock promote search.second --config rules.yaml",
		Args:    argumentCount(1, 1, "the name of a rule, as in: penstock promote search --config rules.yaml"),
		RunE: func(c *cobra.Command, args []string) error {
			return promoteRule(c.OutOrStdout(), args[0], config, isDryRun, algorithms)
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	c.Flags().StringVar(&config, "config", "", "policy file (required)")
	c.Flags().BoolVar(&isDryRun, "dry-run", false, "print the changed lines, and write nothing")
	_ = c.RegisterFlagCompletionFunc("config", completeYAML)
	return c
}

func promoteRule(out io.Writer, name, config string, isDryRun bool, algorithms []*algorithm.Algorithm) error {
	if config == "" {
		return withStatus(exitUsage, errors.New("a policy is missing; write --config rules.yaml"))
	}
	text, err := boundedfile.Read(config, boundedfile.MaxPolicy)
	if err != nil {
		return withStatus(exitInvalid, fmt.Errorf("cannot read the policy: %w", err))
	}
	result, err := promote.Edit(text, name, func(text []byte) (*policyfile.Policy, error) {
		return policyfile.Parse(config, text, os.LookupEnv, settings.PolicyOptions(algorithms...))
	})
	if err != nil {
		return withStatus(exitInvalid, err)
	}
	fmt.Fprint(out, printable.Text(promote.Diff(config, text, result.Text)))
	for _, w := range result.Warnings {
		printable.Fprintf(out, "warning: %s:%d: %s\n", w.File, w.Line, w.Message)
	}
	for _, change := range result.Changes {
		printable.Fprintf(out, "%s\n", change)
	}
	if isDryRun {
		printable.Fprintf(out, "%s is not written, because of --dry-run\n", config)
		return nil
	}
	if err := replace(config, result.Text); err != nil {
		return fmt.Errorf("the policy is not changed: %w", err)
	}
	printable.Fprintf(out, "%s is written\n", config)
	return nil
}

// replace replaces the text of a file in one step. A symbolic link stays one.
func replace(name string, text []byte) error {
	target, err := filepath.EvalSymlinks(name)
	if err != nil {
		return err
	}
	info, err := os.Stat(target)
	if err != nil {
		return err
	}
	file, err := os.CreateTemp(filepath.Dir(target), "."+filepath.Base(target)+".*")
	if err != nil {
		return err
	}
	_, err = file.Write(text)
	if err = errors.Join(err, file.Chmod(info.Mode().Perm()), file.Sync(), file.Close()); err == nil {
		err = os.Rename(file.Name(), target)
	}
	if err != nil {
		err = errors.Join(err, os.Remove(file.Name()))
	}
	return err
}
