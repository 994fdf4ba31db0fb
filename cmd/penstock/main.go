// Command penstock is the gate: a service that puts limits in front of HTTP APIs, and the command
// line for those who choose them.
package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"
	_ "time/tzdata" // images without zone data are common, and zone: must work in them

	"github.com/spf13/cobra"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the first signal drains, the second one ends the process
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run runs a command line, and returns the exit status.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := newRoot()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	command, err := root.ExecuteContextC(ctx)
	return exitStatus(command, err)
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "penstock",
		Short: "A gate for requests: rate limits in front of HTTP APIs",
		Long: "penstock puts limits in front of HTTP APIs: exact ones, shared over Redis by any number of gates, or in memory.\n\n" +
			"Exit status: 0 ok, 1 internal error, 2 usage, 3 denied, 4 invalid configuration, 5 store unreachable.",
		Example:       "  penstock serve --demo\n  penstock validate rules.yaml\n  penstock serve --config rules.yaml --upstream http://localhost:3000",
		Version:       version(),
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetVersionTemplate(versionLine())
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return coded(exitUsage, err) })
	root.AddCommand(newServe(), newValidate(), newExplain(), newSchema(), newVersion())
	return root
}
