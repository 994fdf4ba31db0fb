package main

import (
	"context"
	"fmt"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/penstock/penstock/cmd/penstock/internal/service"
	"github.com/penstock/penstock/cmd/penstock/internal/settings"
)

func (p *program) serve() *cobra.Command {
	given := make(map[string]string)
	var show bool
	command := &cobra.Command{
		Use:   "serve",
		Short: "Run the gate in front of an upstream",
		Long: `Run the gate: requests come in, must pass the limits, and go on to the upstream.

Every setting may be a flag, an environment variable (PENSTOCK_LISTEN for --listen), or a key of the server section of the policy
file (header_timeout for --header-timeout), and counts in that order. PORT, REDIS_URL, and REDIS_HOST with REDIS_PORT are understood too.
Secrets may be in files: PENSTOCK_STORE_FILE, PENSTOCK_SECRET_FILE.

SIGTERM or Ctrl-C drains the gate: requests under way may end. A second one ends it at once.`,
		Example: "  penstock serve --demo\n  penstock serve --upstream http://localhost:3000 --policy penstock.yaml --store redis://localhost:6379",
		Args:    cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			s, err := settings.Load(settings.Sources{Flags: given, Environ: p.environ, File: serverSection})
			if err != nil {
				return err
			}
			if show {
				_, err := fmt.Fprint(p.out, &s)
				return err
			}
			ctx, stop := signal.NotifyContext(command.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			context.AfterFunc(ctx, stop)
			return service.Run(ctx, service.Options{
				Settings: s,
				Gate:     gate(s),
				Log:      p.logger(s.LogFormat, s.LogLevel),
				Version:  thisBuild().Version,
			})
		},
	}
	flags := command.Flags()
	flags.SortFlags = false
	for _, row := range settings.Table {
		flag := flags.VarPF(&setting{row, given}, row.Name, "", row.Help)
		if row.Value == "" {
			flag.NoOptDefVal = "true"
		}
		if strings.Contains(row.Value, "|") {
			command.RegisterFlagCompletionFunc(row.Name, cobra.FixedCompletions(strings.Split(row.Value, "|"), cobra.ShellCompDirectiveNoFileComp))
		}
	}
	flags.BoolVar(&show, "print-settings", false, "print each setting, its value and where it comes from, and end")
	return command
}

// A setting is the flag of a row: what is given goes into a map, and is read with all the others.
type setting struct {
	row   settings.Row
	given map[string]string
}

var _ pflag.Value = (*setting)(nil)

func (s *setting) Set(text string) error {
	s.given[s.row.Name] = text
	return nil
}

// String is the default, for help.
func (s *setting) String() string { return s.row.Default }

// Type is what a value looks like, for help.
func (s *setting) Type() string {
	if s.row.Value == "" {
		return "bool"
	}
	return s.row.Value
}
