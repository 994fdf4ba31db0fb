package command

import (
	"errors"
	"io"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/cmd/penstock/internal/rpc/envoyconfig"
	"github.com/penstock/penstock/cmd/penstock/internal/text/printable"
)

func newMigrate() *cobra.Command {
	c := &cobra.Command{
		Use:   "migrate",
		Short: "Write a policy for the limits of another limiter",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return withStatus(exitUsage, errors.New("no limiter is named; write penstock migrate envoy-ratelimit FOLDER"))
		},
	}
	var canMerge bool
	envoy := &cobra.Command{
		Use:   "envoy-ratelimit FOLDER",
		Short: "Write a policy for the files of envoyproxy/ratelimit",
		Long: "envoy-ratelimit reads the files of envoyproxy/ratelimit in a folder, and prints a policy with their limits. Comments in\n" +
			"the policy list what it cannot express, and standard error names each limit that is left out. To use the files without\n" +
			"a change, run penstock serve --envoy-config.",
		Example: "  penstock migrate envoy-ratelimit examples/envoy > rules.yaml\n  penstock validate rules.yaml",
		Args:    argumentCount(1, 1, "one folder, as in: penstock migrate envoy-ratelimit examples/envoy"),
		RunE: func(c *cobra.Command, args []string) error {
			config, err := envoyconfig.LoadDir(args[0], envoyconfig.Options{MergeDomains: canMerge})
			if err != nil {
				return withStatus(exitInvalid, err)
			}
			for _, line := range config.LeftOut() {
				printable.Fprintf(c.ErrOrStderr(), "penstock: %s\n", line)
			}
			_, err = io.WriteString(c.OutOrStdout(), config.Policy())
			return err
		},
	}
	envoy.Flags().BoolVar(&canMerge, "merge-domains", false, "accept several files with the same domain (MERGE_DOMAIN_CONFIG)")
	c.AddCommand(envoy)
	return c
}
