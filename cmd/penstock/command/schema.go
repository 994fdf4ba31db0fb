package command

import (
	"embed"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/cmd/penstock/internal/serve/settings"
	"github.com/penstock/penstock/cmd/penstock/internal/tools/cases"
	"github.com/penstock/penstock/internal/wording"
)

// schemas has the JSON Schemas of reports. The target schema of the Makefile generates all but that
// of doctor.
//
//go:embed schemas
var schemas embed.FS

const reports = "doctor, load, replay, simulate or suggest"

func newSchema() *cobra.Command {
	var isForCases bool
	var report string
	c := &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of policy files, for editors, or of reports",
		Long: "schema prints the JSON Schema of policy files. An editor with the YAML language server uses it if the first line of a\npolicy names it:\n\n" +
			"  # yaml-language-server: $schema=penstock.schema.json\n\nWith --cases it prints the schema of files for penstock test. With --report it prints the schema of what a command\nprints with -o json.",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) (err error) {
			text := settings.Schema()
			switch {
			case isForCases:
				text = cases.Schema()
			case report != "":
				if text, err = schemas.ReadFile("schemas/" + strings.ToLower(report) + ".json"); err != nil {
					return withStatus(exitUsage, fmt.Errorf("--report is %q; write %s", wording.Clip(report), reports))
				}
			}
			_, err = c.OutOrStdout().Write(text)
			return err
		},
	}
	c.Flags().BoolVar(&isForCases, "cases", false, "print the schema of files with cases")
	c.Flags().StringVar(&report, "report", "", "print the schema of the JSON that this command prints: "+reports)
	c.MarkFlagsMutuallyExclusive("cases", "report")
	return c
}
