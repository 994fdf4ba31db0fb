package command

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/cmd/penstock/internal/serve/settings"
	"github.com/penstock/penstock/cmd/penstock/internal/text/printable"
	"github.com/penstock/penstock/cmd/penstock/internal/tools/storebench"
	"github.com/penstock/penstock/internal/wording"
)

func newBench() *cobra.Command {
	var b benchCommand
	c := &cobra.Command{
		Use:   "bench --store URL [flags]",
		Short: "Measure how fast Redis or Valkey makes decisions",
		Long: "bench makes decisions in Redis or Valkey, and measures round trips, decisions per second, and the time of the server's\n" +
			"processor for each. It measures what serve would do from this machine, without guards. Its keys have a prefix of their\n" +
			"own, and are deleted. It is a load on the server, so it asks first; --yes is for scripts. --measured of penstock size and of\n" +
			"penstock doctor reads the output of -o json.",
		Example: "  penstock bench --store redis://localhost:6379\n  penstock bench --store redis://localhost:6379 --yes -o json > bench.json\n" +
			"  penstock size --config rules.yaml --measured bench.json",
		Args:              argumentCount(0, 0, "flags only, as in: penstock bench --store redis://localhost:6379"),
		RunE:              func(c *cobra.Command, _ []string) error { return b.run(c) },
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	f := c.Flags()
	f.StringVar(&b.store, "store", "", "URL of Redis or Valkey (PENSTOCK_STORE)")
	f.IntSliceVar(&b.options.Callers, "callers", []int{1, 64, 512}, "callers that make decisions at the same time, for each step")
	f.DurationVar(&b.options.Duration, "duration", time.Second, "how long each step lasts")
	f.Float64Var(&b.options.MaxRate, "max-rate", 50_000, "decisions per second at most")
	f.BoolVar(&b.isConfirmed, "yes", false, "do not prompt for confirmation")
	addOutput(c, &b.output)
	return c
}

type benchCommand struct {
	store, output string
	isConfirmed   bool
	options       storebench.Options
}

func (b *benchCommand) run(c *cobra.Command) error {
	if err := b.check(); err != nil {
		return withStatus(exitUsage, err)
	}
	s, err := loadStore(b.store)
	if err != nil {
		return err
	}
	if !b.isConfirmed {
		question := fmt.Sprintf("Make up to %g decisions per second in %s for about %s? Other programs that use it may become slower.",
			b.options.MaxRate, s.StoreName(), wording.Period(time.Duration(len(b.options.Callers))*b.options.Duration))
		if err := confirm(c, question, "nothing was measured"); err != nil {
			return err
		}
	}
	b.options.URL = s.Store
	r, err := storebench.Run(c.Context(), b.options)
	if c.Context().Err() != nil {
		return fmt.Errorf("the measurement was interrupted: %w", err)
	} else if err != nil {
		return err
	}
	r.Store = s.StoreName()
	if b.output == "json" {
		return writeJSON(c.OutOrStdout(), r)
	}
	return printBench(c.OutOrStdout(), r)
}

// loadStore returns the settings of the store with this URL, or that of the environment.
func loadStore(store string) (*settings.Settings, error) {
	flags := map[string]string{}
	if store != "" {
		flags["store"] = store
	}
	s, err := settings.Load(settings.Sources{Flags: flags, Environ: os.Environ(), Only: []string{"store"}})
	if err == nil && s.Store == "" {
		err = errNoStore
	}
	return &s, err
}

func (b *benchCommand) check() error {
	const maxSteps, maxCallers, maxDuration, maxRate = 20, 10_000, time.Minute, 10_000_000
	isRate := b.options.MaxRate >= 1 && b.options.MaxRate <= maxRate // false for NaN
	switch n := len(b.options.Callers); {
	case n == 0 || n > maxSteps:
		return fmt.Errorf("--callers has %d steps; write 1 to %d", n, maxSteps)
	case b.options.Duration < 100*time.Millisecond || b.options.Duration > maxDuration:
		return fmt.Errorf("--duration is %s; write 100ms to %s", wording.Period(b.options.Duration), wording.Period(maxDuration))
	case !isRate:
		return fmt.Errorf("--max-rate is %g; write 1 to %d", b.options.MaxRate, maxRate)
	}
	for _, n := range b.options.Callers {
		if n < 1 || n > maxCallers {
			return fmt.Errorf("--callers has %d; write 1 to %d", n, maxCallers)
		}
	}
	return nil
}

func printBench(out io.Writer, r *storebench.Report) error {
	printable.Fprintf(out, "%s: %d %s; other programs use %.2f processors of it\n", r.Store, r.Servers, plural(r.Servers, "server"), r.Others)
	printable.Fprintf(out, "a round trip takes %.0f us, and 1 %% take at least %.0f us\n\n", r.PingP50, r.PingP99)
	var rows [][]string
	for _, s := range r.Steps {
		row := strings.Fields(fmt.Sprintf("%d %.0f %.0f %.0f %.2f %.2f", s.Callers, s.Rate, s.P50, s.P99, s.ScriptMicros, s.CPUMicros))
		if s.IsBounded {
			row = append(row, "  bounded by --max-rate")
		}
		rows = append(rows, row)
	}
	return printTable(out, []string{"callers", "decisions/s", "p50 us", "p99 us", "script us", "processor us"}, rows, true)
}

// readBench reads a report of bench.
func readBench(file string) (*storebench.Report, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("--measured: %w", err)
	}
	var r storebench.Report
	const maxMicros = 1e6
	if json.Unmarshal(text, &r) != nil || !(r.ScriptMicros > 0 && r.ScriptMicros < maxMicros) {
		return nil, fmt.Errorf("--measured: %s is no report of bench; write it by: penstock bench --store URL --yes -o json", file)
	}
	return &r, nil
}
