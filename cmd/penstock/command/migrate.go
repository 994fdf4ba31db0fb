package command

import (
	"io"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/grpclimit/envoyconfig"
)

// newMigrate makes the command that writes policies for the configurations of other limiters.
func newMigrate() *cobra.Command {
	c := &cobra.Command{
		Use:   "migrate",
		Short: "Write a policy for the limits of another limiter",
		Args:  cobra.NoArgs,
	}
	var merge bool
	envoy := &cobra.Command{
		Use:   "envoy-ratelimit FOLDER",
		Short: "Write a policy for the files of envoyproxy/ratelimit",
		Long: "envoy-ratelimit reads the files of envoyproxy/ratelimit in a folder, and prints a policy with their limits. Its comments\n" +
			"say what a policy cannot express. To keep the files as they are, use penstock serve --envoy-config.",
		Example: "  penstock migrate envoy-ratelimit examples/envoy > rules.yaml\n  penstock validate rules.yaml",
		Args:    needsArgument(1, 1, "one folder, as in: penstock migrate envoy-ratelimit examples/envoy"),
		RunE: func(c *cobra.Command, args []string) error {
			config, err := envoyconfig.LoadDir(args[0], envoyconfig.Options{MergeDomains: merge})
			if err != nil {
				return coded(exitInvalid, err)
			}
			_, err = io.WriteString(c.OutOrStdout(), config.Policy())
			return err
		},
	}
	envoy.Flags().BoolVar(&merge, "merge-domains", false, "let several files have one domain (MERGE_DOMAIN_CONFIG)")
	c.AddCommand(envoy)
	return c
}
