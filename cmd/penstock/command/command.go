// Package command is the program penstock. A program with algorithms of its own passes them to
// Main, so that its policy files can name them.
package command

import (
	"context"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/algorithm"
)

// Main runs the command line of this process, and then ends the process. Policy files may use these
// algorithms, under their Titles, in addition to the built-in ones.
func Main(algorithms ...*algorithm.Algorithm) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the first signal drains, the second one ends the process
	args := os.Args[1:]
	if filepath.Base(os.Args[0]) == ratelimitName {
		args = append([]string{ratelimitName}, args...)
	}
	os.Exit(Run(ctx, args, os.Stdout, os.Stderr, algorithms...))
}

// Run runs a command line and returns the exit status. See Main.
func Run(ctx context.Context, args []string, stdout, stderr io.Writer, algorithms ...*algorithm.Algorithm) int {
	root := New(algorithms...)
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	command, err := root.ExecuteContextC(ctx)
	return exitStatus(command, err)
}

// New makes the command penstock with all its subcommands, for programs that write their
// documentation. See Main.
func New(algorithms ...*algorithm.Algorithm) *cobra.Command {
	root := &cobra.Command{
		Use:   "penstock",
		Short: "A rate limiter for HTTP APIs",
		Long: "penstock limits requests to HTTP APIs. All instances share one set of counters in Redis or Valkey;\na single instance can count in memory.\n\n" +
			"Exit status: 0 ok, 1 another error, 2 wrong usage, 3 request denied, 4 invalid configuration or token, 5 store unreachable,\n6 penstock doctor has found a problem, a case of penstock test has failed, or --fail-if of\npenstock replay or penstock load holds.",
		Example:       "  penstock serve --demo\n  penstock validate rules.yaml\n  penstock serve --config rules.yaml --upstream http://localhost:3000",
		Version:       version(),
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetVersionTemplate(thisBuild().line())
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error { return withStatus(exitUsage, explainFlagError(c, err)) })
	root.AddCommand(newServe(algorithms), newValidate(algorithms), newExplain(algorithms), newMigrate(), newRatelimit(algorithms), newStatus(algorithms), newReset(algorithms),
		newTop(), newDenials(), newDoctor(algorithms), newACL(), newHealthcheck(), newSchema(), newVersion(),
		newTest(algorithms), newInit(), newSize(algorithms), newSimulate(algorithms), newReplay(algorithms), newPromote(algorithms), newSuggest(),
		newLoad(), newCheck(), newBench())
	return root
}
