package command

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/cmd/penstock/internal/serve/settings"
	"github.com/penstock/penstock/cmd/penstock/internal/text/printable"
	"github.com/penstock/penstock/internal/panicked"
	"github.com/penstock/penstock/internal/wording"
)

// Exit statuses. They are part of the interface: scripts depend on them.
const (
	exitOK          = 0
	exitInternal    = 1 // an error without a status of its own
	exitUsage       = 2 // the command line is wrong
	exitDenied      = 3 // a request would be denied, or there was nothing to reset
	exitInvalid     = 4 // the configuration or a token is wrong
	exitUnreachable = 5 // the store or an instance gives no answer
	exitProblem     = 6 // doctor has found a problem, a case of penstock test has failed, or --fail-if of replay or load holds
)

// A statusError is an error with an exit status. If it has no cause, nothing is printed, because
// the command has printed everything already.
type statusError struct {
	status int
	cause  error
}

func (e *statusError) Error() string { return fmt.Sprint(e.cause) }

func (e *statusError) Unwrap() error { return e.cause }

func withStatus(status int, cause error) error { return &statusError{status, cause} }

// statusOnly returns an error that sets the exit status, and prints nothing.
func statusOnly(status int) error { return &statusError{status: status} }

func exitStatus(c *cobra.Command, err error) int {
	var failure *statusError
	switch {
	case err == nil:
		return exitOK
	case !errors.As(err, &failure):
		failure = &statusError{statusOf(err), err}
	}
	if failure.cause != nil {
		fmt.Fprintln(c.ErrOrStderr(), "penstock: "+printable.Text(textOf(failure.cause)))
		if hint := storeHint(failure.cause); hint != "" {
			fmt.Fprintln(c.ErrOrStderr(), printable.Text(hint))
		}
		if crash := (*panicked.Error)(nil); errors.As(failure.cause, &crash) {
			fmt.Fprintf(c.ErrOrStderr(), "%s", crash.Stack)
		}
		if failure.status == exitUsage {
			fmt.Fprintf(c.ErrOrStderr(), "Run %q for usage.\n", c.CommandPath()+" --help")
		}
	}
	return failure.status
}

// textOf returns the text of an error without the prefixes that only repeat the meaning of the exit
// status. Such a prefix may stand at the beginning or after other text.
func textOf(err error) string {
	text := err.Error()
	for _, kind := range []error{settings.ErrInvalid, penstock.ErrInvalid} {
		text = strings.TrimPrefix(text, kind.Error()+": ")
		text = strings.ReplaceAll(text, ": "+kind.Error()+": ", ": ")
	}
	text = strings.ReplaceAll(text, ": "+penstock.ErrUnavailable.Error()+": ", ": ")
	return strings.TrimPrefix(text, "penstock: ")
}

func statusOf(err error) int {
	switch {
	case errors.Is(err, settings.ErrFlag):
		return exitUsage
	case errors.Is(err, settings.ErrInvalid), errors.Is(err, penstock.ErrInvalid):
		return exitInvalid
	case errors.Is(err, penstock.ErrUnavailable):
		return exitUnreachable
	case strings.HasPrefix(err.Error(), "unknown command"), strings.Contains(err.Error(), "arg(s)"):
		return exitUsage // cobra has no types for these errors
	}
	return exitInternal
}

// addOutput adds the flag --output with these formats; text or json by default. The value is
// checked before the command runs.
func addOutput(c *cobra.Command, output *string, formats ...string) {
	if formats == nil {
		formats = []string{"text", "json"}
	}
	c.Flags().StringVarP(output, "output", "o", "text", "output format: "+wording.List(formats, "or"))
	_ = c.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp))
	c.PreRunE = func(*cobra.Command, []string) error { return checkChoice("output", *output, formats) }
}

func checkChoice(what, value string, known []string) error {
	if slices.Contains(known, value) {
		return nil
	}
	return withStatus(exitUsage, fmt.Errorf("unknown %s %q; write %s", what, value, strings.Join(known, " or ")))
}

// rejectConfigFlag sets the error message for --config of a command that takes files as arguments.
func rejectConfigFlag(c *cobra.Command, example string) {
	c.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		if err.Error() == "unknown flag: --config" {
			err = fmt.Errorf("this command has no --config; write the name of the file alone, as in: %s", example)
		}
		return withStatus(exitUsage, err)
	})
}

// argumentCount returns a check that there are between least and most arguments. The error of the
// check names the wanted arguments.
func argumentCount(least, most int, wanted string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		switch {
		case len(args) < least:
			return withStatus(exitUsage, fmt.Errorf("an argument is missing; write %s", wanted))
		case len(args) > most:
			return withStatus(exitUsage, fmt.Errorf("the argument %.60q is one too many; write %s", args[most], wanted))
		}
		return nil
	}
}
