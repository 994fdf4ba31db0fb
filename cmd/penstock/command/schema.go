package command

import (
	"github.com/spf13/cobra"

	"github.com/penstock/penstock/cmd/penstock/internal/serve/settings"
	"github.com/penstock/penstock/cmd/penstock/internal/tools/cases"
)

// newSchema makes the command that prints the JSON Schema of policy files.
func newSchema() *cobra.Command {
	var isForCases bool
	c := &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of policy files, for editors",
		Long: "schema prints the JSON Schema of policy files. An editor with the YAML language server uses it if the first line of a\npolicy names it:\n\n" +
			"  # yaml-language-server: $schema=penstock.schema.json\n\nWith --cases it prints the schema of files for penstock test.",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			text := settings.Schema()
			if isForCases {
				text = cases.Schema()
			}
			_, err := c.OutOrStdout().Write(text)
			return err
		},
	}
	c.Flags().BoolVar(&isForCases, "cases", false, "print the schema of files with cases")
	return c
}
