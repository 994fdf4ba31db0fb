package command

import (
	"cmp"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	"github.com/lmittmann/tint"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/cmd/penstock/internal/serve/heap"
	"github.com/penstock/penstock/cmd/penstock/internal/serve/logsink"
	"github.com/penstock/penstock/cmd/penstock/internal/serve/service"
	"github.com/penstock/penstock/cmd/penstock/internal/serve/settings"
	"github.com/penstock/penstock/cmd/penstock/internal/serve/telemetry"
	"github.com/penstock/penstock/cmd/penstock/internal/text/printable"
	"github.com/penstock/penstock/policy"
	"github.com/penstock/penstock/policy/policyfile"
)

func newServe(algorithms []*algorithm.Algorithm) *cobra.Command {
	var shouldPrint bool
	c := &cobra.Command{
		Use:   "serve",
		Short: "Run the service: a reverse proxy that limits requests, or a service that decides for others",
		Long: "serve forwards requests to an upstream and rejects those that exceed the limits of the policy. With --api, --grpc and\n" +
			"--resp it also decides for other proxies, programs, Envoy and Redis clients, with the same limits. Without an upstream it\n" +
			"only decides, and forwards nothing.\n\n" +
			"Each setting comes from the first of these that has it: its flag, the environment (such as PENSTOCK_UPSTREAM for\n" +
			"--upstream; also REDIS_URL for --store, and PORT for --listen), the policy's server section, its default.\n" +
			"A secret can be read from a file: set PENSTOCK_KEY_HASH_SECRET_FILE to the file's name.\n\n" +
			"The policy is reloaded when its file changes, and on SIGHUP. SIGTERM drains requests in flight, then exits.",
		Example: "  penstock serve --demo\n  penstock serve --config rules.yaml --upstream http://localhost:3000 --store redis://localhost:6379\n" +
			"  penstock serve --resp 127.0.0.1:6380 --store redis://localhost:6379",
		Args: argumentCount(0, 0, "flags only, as in: penstock serve --config rules.yaml --upstream http://localhost:3000"),
	}
	values := make(map[string]*flagValue)
	for _, row := range settings.Table {
		value := &flagValue{text: row.Default, form: cmp.Or(row.Value, "bool")}
		values[row.Name] = value
		flag := c.Flags().VarPF(value, row.Name, "", row.Help)
		if row.Value == "" {
			flag.NoOptDefVal = "true" // a bool may be set by --name alone
		}
		if choices := row.Choices(); choices != nil {
			_ = c.RegisterFlagCompletionFunc(row.Name, cobra.FixedCompletions(choices, cobra.ShellCompDirectiveNoFileComp))
		}
	}
	c.Flags().BoolVar(&shouldPrint, "print-settings", false, "print each setting with its source, and exit")
	_ = c.RegisterFlagCompletionFunc("config", completeYAML)
	c.RunE = func(c *cobra.Command, _ []string) error {
		given := make(map[string]string)
		for name, value := range values {
			if c.Flags().Changed(name) {
				given[name] = value.text
			}
		}
		return serve(c, given, nil, shouldPrint, algorithms)
	}
	return c
}

// serve runs the service with the given flags, and logs each note as a warning. If shouldPrint is
// true, serve only prints the settings.
func serve(c *cobra.Command, given map[string]string, notes []string, shouldPrint bool, algorithms []*algorithm.Algorithm) error {
	var p *policyfile.Policy
	s, err := settings.Load(settings.Sources{Flags: given, Environ: os.Environ(), File: policyLoader(&p, algorithms), CanBeIncomplete: shouldPrint})
	if p != nil {
		p.Close()
	}
	if err != nil {
		return err
	}
	if shouldPrint {
		_, err := c.OutOrStdout().Write([]byte(s.String()))
		return err
	}
	inherited, err := inheritedListener(os.Getenv, os.Getpid(), firstInheritedFD)
	if err != nil {
		return err
	}
	signal.Ignore(syscall.SIGPIPE) // otherwise the process would end when the reader of its log ends
	sink := logsink.New(c.ErrOrStderr())
	defer sink.Close()
	logger := newLog(s, sink, c.ErrOrStderr() == os.Stderr)
	log.SetFlags(0)
	log.SetOutput(service.StandardLog(logger))
	for _, note := range notes {
		logger.Warn(note)
	}
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	defer signal.Stop(hangup)
	heap.Tune()
	return service.Run(c.Context(), service.Options{
		Settings: s, Reload: hangup, Log: logger, LinesLost: sink.Lost, Version: version(), Algorithms: algorithms, Inherited: inherited, Telemetry: telemetry.Environment(),
	})
}

// A flagValue is the text of a flag, which package settings checks later. The help shows the form
// that the text must have, such as duration.
type flagValue struct{ text, form string }

func (v *flagValue) String() string { return v.text }

func (v *flagValue) Type() string { return v.form }

func (v *flagValue) Set(text string) error {
	v.text = text
	return nil
}

// policyLoader returns a function that loads a policy into p, and returns its server section. The
// function fails if any part of the file is invalid.
func policyLoader(p **policyfile.Policy, algorithms []*algorithm.Algorithm) func(path string) (*settings.Section, error) {
	return func(path string) (_ *settings.Section, err error) {
		if *p, err = policyfile.Load(path, settings.PolicyOptions(algorithms...)); err != nil {
			return nil, err
		}
		section, _ := policy.SectionOf[*settings.Section]((*p).Rules)
		return section, nil
	}
}

// newLog makes the logger in the format of the settings. isStderr is true if its lines go to
// standard error, which may be a terminal.
func newLog(s settings.Settings, to io.Writer, isStderr bool) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(strings.ToUpper(s.LogLevel))) // settings.Load has checked it
	switch {
	case s.LogFormat == "json":
		return slog.New(slog.NewJSONHandler(escapingWriter{to}, &slog.HandlerOptions{Level: level}))
	case isStderr && term.IsTerminal(int(os.Stderr.Fd())) && os.Getenv("NO_COLOR") == "":
		return newColoredLog(to, level)
	}
	return slog.New(slog.NewTextHandler(to, &slog.HandlerOptions{Level: level}))
}

func newColoredLog(to io.Writer, level slog.Level) *slog.Logger {
	return slog.New(tint.NewTextHandler(to, &tint.Options{Level: level, ReplaceAttr: withoutEscapes}))
}

// withoutEscapes replaces the control characters that tint leaves in a log line: ESC in the texts
// that tint colors, and line ends in the message.
func withoutEscapes(_ []string, a slog.Attr) slog.Attr {
	switch text := a.Value.String(); {
	case a.Key == slog.MessageKey:
		a.Value = slog.StringValue(printable.Line(text))
	case strings.Contains(text, "\x1b"):
		a.Value = slog.StringValue(strings.ReplaceAll(text, "\x1b", "\ufffd"))
	}
	return a
}

// An escapingWriter writes log lines in JSON. It escapes the control characters that slog leaves.
type escapingWriter struct{ to io.Writer }

func (w escapingWriter) Write(line []byte) (int, error) {
	if _, err := w.to.Write(printable.JSON(line)); err != nil {
		return 0, err
	}
	return len(line), nil
}

// firstInheritedFD is the first file descriptor that systemd passes: SD_LISTEN_FDS_START.
const firstInheritedFD = 3

// inheritedListener returns the listener for requests that systemd has opened for the process pid.
// Its file descriptor is firstFD. It returns nil if systemd has passed none to this process. The
// socket must have the name "listen"; see sd_listen_fds(3). systemd keeps the socket open, so
// clients can connect while the service restarts.
func inheritedListener(getenv func(string) string, pid int, firstFD uintptr) (net.Listener, error) {
	if getenv("LISTEN_PID") != strconv.Itoa(pid) {
		return nil, nil // no listener was passed, or it is for another process
	}
	names := getenv("LISTEN_FDNAMES")
	if getenv("LISTEN_FDS") != "1" || names != "listen" {
		return nil, fmt.Errorf("%w: systemd passes %q sockets with the names %q; write one socket unit with one ListenStream and FileDescriptorName=listen, and use the settings for other addresses",
			settings.ErrInvalid, getenv("LISTEN_FDS"), strings.Split(names, ":"))
	}
	f := os.NewFile(firstFD, names)
	defer f.Close() // FileListener duplicates it
	l, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("%w: the socket of systemd: %w; write ListenStream", settings.ErrInvalid, err)
	}
	return l, nil
}
