package main

import (
	"github.com/spf13/cobra"

	"github.com/penstock/penstock/policy"
)

// newSchema is the command that prints the JSON Schema of policies.
func newSchema() *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of policies, for editors",
		Long: "schema prints the JSON Schema of policies. An editor with the YAML language server takes it up from a policy's first line:\n\n" +
			"  # yaml-language-server: $schema=penstock.schema.json",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			_, err := c.OutOrStdout().Write(policy.Schema())
			return err
		},
	}
}
