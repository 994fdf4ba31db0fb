// Command penstock is the gate: a service that puts limits in front of HTTP APIs, and the command line for those who choose them.
package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
)

func main() {
	p := &program{environ: os.Environ(), out: os.Stdout, err: os.Stderr}
	os.Exit(p.run(context.Background(), os.Args[1:]))
}

// A program is what main runs, and tests run.
type program struct {
	environ  []string
	out, err io.Writer
	began    bool // a command was understood and runs
}

// run runs a command line and returns its exit code.
func (p *program) run(ctx context.Context, args []string) int {
	root := &cobra.Command{
		Use:           "penstock",
		Short:         "Limits how often things happen, exactly, in front of HTTP APIs",
		SilenceErrors: true,
		SilenceUsage:  true,
		PersistentPreRun: func(*cobra.Command, []string) {
			p.began = true
		},
	}
	root.SetArgs(args)
	root.SetOut(p.out)
	root.SetErr(p.err)
	root.AddCommand(p.serve(), p.version()) // one file each
	command, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitOK
	}
	code := p.exitCode(err)
	fmt.Fprintf(p.err, "penstock: %v\n", err)
	if code == exitUsage {
		fmt.Fprintf(p.err, "%s --help shows what there is\n", command.CommandPath())
	}
	return code
}
