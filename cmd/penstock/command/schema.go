package command

import (
	"github.com/spf13/cobra"

	"github.com/penstock/penstock/cmd/penstock/internal/settings"
)

// newSchema makes the command that prints the JSON Schema of policy files.
func newSchema() *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of policy files, for editors",
		Long: "schema prints the JSON Schema of policy files. An editor with the YAML language server uses it if the first line of a\npolicy names it:\n\n" +
			"  # yaml-language-server: $schema=penstock.schema.json",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			_, err := c.OutOrStdout().Write(settings.Schema())
			return err
		},
	}
}
