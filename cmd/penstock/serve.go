package main

import (
	"fmt"
	"io"
	"log"
	"log/slog"
	"os"
	"os/signal"
	"regexp"
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/lmittmann/tint"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/penstock/penstock/cmd/penstock/internal/logsink"
	"github.com/penstock/penstock/cmd/penstock/internal/service"
	"github.com/penstock/penstock/cmd/penstock/internal/settings"
	"github.com/penstock/penstock/policy"
)

// newServe is the command that runs the gate.
func newServe() *cobra.Command {
	var show bool
	c := &cobra.Command{
		Use:   "serve",
		Short: "Run the gate: a reverse proxy that limits requests",
		Long: "serve passes requests on to an upstream as the policy's limits allow.\n\n" +
			"Each setting comes from its flag, else from the environment (PENSTOCK_ and the flag's name, as in PENSTOCK_UPSTREAM; REDIS_URL for the store, PORT\n" +
			"for the port), else from the policy's server section, else from its default. Secrets may stand in files: PENSTOCK_SECRET_FILE names one.\n\n" +
			"SIGHUP reads the policy again, which also happens when the file changes. SIGTERM drains and ends.",
		Example: "  penstock serve --demo\n  penstock serve --config rules.yaml --upstream http://localhost:3000 --store redis://localhost:6379",
		Args:    cobra.NoArgs,
	}
	values := make(map[string]*string)
	for _, row := range settings.Table {
		values[row.Name] = c.Flags().String(row.Name, row.Default, row.Help)
		flag := c.Flags().Lookup(row.Name)
		if row.Value == "" {
			flag.NoOptDefVal = "true"
		}
		if strings.Contains(row.Value, "|") {
			_ = c.RegisterFlagCompletionFunc(row.Name, cobra.FixedCompletions(strings.Split(row.Value, "|"), cobra.ShellCompDirectiveNoFileComp))
		}
	}
	c.Flags().BoolVar(&show, "print-settings", false, "print each setting and where it comes from, and end")
	_ = c.RegisterFlagCompletionFunc("config", completeYAML)
	c.RunE = func(c *cobra.Command, _ []string) error {
		given := make(map[string]string)
		for name, value := range values {
			if c.Flags().Changed(name) {
				given[name] = *value
			}
		}
		s, err := settings.Load(settings.Sources{Flags: given, Environ: os.Environ(), File: serverSection, Incomplete: show})
		if err != nil {
			return err
		}
		if show {
			_, err := c.OutOrStdout().Write([]byte(s.String()))
			return err
		}
		signal.Ignore(syscall.SIGPIPE) // or the gate would end with the reader of its log
		sink := logsink.New(c.ErrOrStderr())
		defer sink.Close()
		logger := newLog(s, sink, c.ErrOrStderr() == os.Stderr)
		log.SetFlags(0)
		log.SetOutput(service.StandardLog(logger))
		hangup := make(chan os.Signal, 1)
		signal.Notify(hangup, syscall.SIGHUP)
		defer signal.Stop(hangup)
		return service.Run(c.Context(), service.Options{
			Settings: s, Gate: service.Limits(s, hangup), Log: logger, LinesLost: sink.Lost, Version: version(),
		})
	}
	return c
}

// serverSection reads the server section of a policy. The rest of the file is the gate's to judge,
// but it must be sound.
func serverSection(path string) (policy.ServerConfig, error) {
	rules, err := policy.Load(path)
	if err != nil {
		return policy.ServerConfig{}, err
	}
	defer rules.Close()
	return rules.Server(), nil
}

// newLog makes the log in the format of the settings. stderr tells whether its lines end up on
// standard error, which may be a terminal.
func newLog(s settings.Settings, to io.Writer, stderr bool) *slog.Logger {
	to = escaped{to}
	var level slog.Level
	_ = level.UnmarshalText([]byte(strings.ToUpper(s.LogLevel))) // one of four, which are checked
	switch {
	case s.LogFormat == "json":
		return slog.New(slog.NewJSONHandler(to, &slog.HandlerOptions{Level: level}))
	case stderr && term.IsTerminal(int(os.Stderr.Fd())) && os.Getenv("NO_COLOR") == "":
		return slog.New(tint.NewTextHandler(to, &tint.Options{Level: level}))
	}
	return slog.New(slog.NewTextHandler(to, &slog.HandlerOptions{Level: level}))
}

// escaped writes log lines without the control characters U+007F to U+009F, by which some terminals
// are steered. slog leaves them as they are in JSON, where they stand in strings only.
type escaped struct{ to io.Writer }

var control = regexp.MustCompile("[\u007f-\u009f]")

func (e escaped) Write(line []byte) (int, error) {
	safe := control.ReplaceAllFunc(line, func(c []byte) []byte {
		r, _ := utf8.DecodeRune(c)
		return fmt.Appendf(nil, `\u%04x`, r)
	})
	if _, err := e.to.Write(safe); err != nil {
		return 0, err
	}
	return len(line), nil
}
