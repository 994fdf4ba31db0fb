package command

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/cmd/penstock/internal/serve/settings"
	"github.com/penstock/penstock/cmd/penstock/internal/text/printable"
	"github.com/penstock/penstock/cmd/penstock/internal/tools/scaffold"
	"github.com/penstock/penstock/internal/boundedfile"
	"github.com/penstock/penstock/policy/policyfile"
)

func newInit() *cobra.Command {
	var o scaffold.Options
	var isForced bool
	c := &cobra.Command{
		Use:   "init [flags] [FILE]",
		Short: "Write a first policy",
		Long: "init writes a policy with comments and one rule for all requests. With --from-openapi it reads an API description and\n" +
			"writes two rules for each group of paths: one for its reads, and one for its writes. A path that ends in a word such as\n" +
			"login takes passwords, and has a rule of its own.\n" +
			"validate --strict accepts the policy, and serve runs it.\n\n" +
			"init replaces an existing file only with --force. FILE is policy.yaml by default; - is standard output.",
		Example: "  penstock init\n  penstock init --per 'header X-API-Key' --rate 1000/h policy.yaml\n  penstock init --from-openapi openapi.yaml -",
		Args:    argumentCount(0, 1, "at most one file, as in: penstock init policy.yaml"),
		RunE: func(c *cobra.Command, args []string) error {
			file := "policy.yaml"
			if len(args) > 0 {
				file = args[0]
			}
			text, notes, err := firstPolicy(o)
			if err != nil {
				return err
			}
			if file == "-" {
				_, err = fmt.Fprint(c.OutOrStdout(), text)
			} else {
				err = create(file, text, isForced)
			}
			if err != nil {
				return err
			}
			for _, note := range notes {
				printable.Fprintf(c.ErrOrStderr(), "note: %s\n", note)
			}
			if file == "-" {
				return nil
			}
			printable.Fprintf(c.OutOrStdout(), "%s is written. Next: penstock serve --config %s --upstream http://localhost:3000\n", file, file)
			return nil
		},
		ValidArgsFunction: completeYAML,
	}
	f := c.Flags()
	f.StringVar(&o.Per, "per", "", "who is limited: ip, global, or 'header NAME' with an API key (default: ip, or the API key in rules whose operations all need it)")
	f.StringVar(&o.Rate, "rate", "100/min", "how many requests each client may send")
	f.StringVar(&o.OpenAPI, "from-openapi", "", "file with an OpenAPI 3 description of the API, in YAML or JSON")
	f.BoolVar(&isForced, "force", false, "replace the file if it exists")
	return c
}

// firstPolicy returns the text of a policy, and notes for the user about what it does not limit.
func firstPolicy(o scaffold.Options) (text string, notes []string, err error) {
	if o.OpenAPI != "" {
		if o.OpenAPIText, err = boundedfile.Read(o.OpenAPI, scaffold.MaxOpenAPI); err != nil {
			return "", nil, withStatus(exitInvalid, fmt.Errorf("cannot read the OpenAPI file: %w", err))
		}
	}
	text, notes, err = scaffold.Write(o)
	switch {
	case errors.Is(err, scaffold.ErrOption):
		return "", nil, withStatus(exitUsage, err)
	case err != nil:
		return "", nil, withStatus(exitInvalid, err)
	}
	if len(text) > boundedfile.MaxPolicy {
		return "", nil, withStatus(exitInvalid, fmt.Errorf("%s: the policy would have %d bytes; the most is %d; describe fewer or shorter paths", o.OpenAPI, len(text), boundedfile.MaxPolicy))
	}
	p, err := policyfile.Parse("policy.yaml", []byte(text), nil, settings.PolicyOptions())
	if err != nil {
		return "", nil, withStatus(exitInternal, fmt.Errorf("penstock init has a bug: the policy that it would write is not valid: %w", err))
	}
	p.Close()
	return text, notes, nil
}

// create writes a new file. If the file exists, it fails, or replaces it if isForced is true.
func create(name, text string, isForced bool) error {
	flags := os.O_WRONLY | os.O_CREATE | os.O_EXCL
	if isForced {
		flags = os.O_WRONLY | os.O_CREATE | os.O_TRUNC
	}
	file, err := os.OpenFile(name, flags, 0o644)
	if errors.Is(err, fs.ErrExist) {
		return withStatus(exitUsage, fmt.Errorf("%s exists; write another name, or --force to replace it. To read an OpenAPI file, write --from-openapi before its name", name))
	}
	if err == nil {
		_, err = file.WriteString(text)
		err = errors.Join(err, file.Close())
	}
	if err != nil {
		return withStatus(exitUsage, fmt.Errorf("cannot write the policy: %w; write the name of a file in a folder that exists, or - for standard output", err))
	}
	return nil
}
