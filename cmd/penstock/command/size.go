package command

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/cmd/penstock/internal/serve/settings"
	"github.com/penstock/penstock/cmd/penstock/internal/text/printable"
	"github.com/penstock/penstock/cmd/penstock/internal/tools/sizing"
	"github.com/penstock/penstock/internal/wording"
	"github.com/penstock/penstock/policy/policyfile"
)

func newSize(algorithms []*algorithm.Algorithm) *cobra.Command {
	var s sizeCommand
	c := &cobra.Command{
		Use:   "size --config FILE [flags]",
		Short: "Compute the memory and servers that the limits of a policy need in Redis",
		Long: "size computes the memory, the commands and the servers that limits need in Redis or Valkey. --clients is how many clients\n" +
			"are active at the same time, and --requests is how many requests per second they send together. The figures were\n" +
			"measured on Redis 7.0; --measured computes with the processor time of your store. The memory is enough if all clients\n" +
			"use their limits fully. With sliding-log and in_flight, most clients need less.",
		Example: "  penstock size --config rules.yaml --clients 1000000 --requests 20000\n  penstock size --config rules.yaml --rule search -o json",
		Args:    argumentCount(0, 0, "flags only, as in: penstock size --config rules.yaml --clients 1000000"),
		RunE: func(c *cobra.Command, _ []string) error {
			return s.run(c.OutOrStdout(), algorithms)
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	f := c.Flags()
	f.StringVar(&s.config, "config", "", "policy file (required)")
	f.StringVar(&s.rule, "rule", "", "compute only this rule")
	f.Int64Var(&s.clients, "clients", 100_000, "clients of each rule that are active at the same time")
	f.Float64Var(&s.requests, "requests", 1000, "requests per second of all clients of a rule")
	f.IntVar(&s.keyLength, "key-length", 20, "length of a key, such as key:abc, in characters")
	f.StringVar(&s.measured, "measured", "", "file with the output of penstock bench -o json, to compute with the processor times of your store")
	addOutput(c, &s.output)
	_ = c.RegisterFlagCompletionFunc("config", completeYAML)
	return c
}

type sizeCommand struct {
	config, rule, measured, output string
	clients                        int64
	requests                       float64
	keyLength                      int
}

type ruleSize struct {
	Rule   string   `json:"rule"`
	Limits []string `json:"limits"`
	sizing.Size
}

func (s *sizeCommand) run(out io.Writer, algorithms []*algorithm.Algorithm) error {
	if err := s.check(); err != nil {
		return withStatus(exitUsage, err)
	}
	p, err := policyfile.Load(s.config, settings.PolicyOptions(algorithms...))
	if err != nil {
		return err
	}
	defer p.Close()
	scriptTime := time.Duration(0) // the default
	if s.measured != "" {
		r, err := readBench(s.measured)
		if err != nil {
			return withStatus(exitInvalid, err)
		}
		scriptTime = time.Duration(r.ScriptMicros * float64(time.Microsecond))
	}
	var names []string
	all := []ruleSize{}
	for _, rule := range p.Rules.Spec().Rules {
		names = append(names, rule.Name)
		isSelected := s.rule == "" || s.rule == rule.Name
		if !isSelected || rule.Unlimited {
			continue
		}
		one := ruleSize{Rule: rule.Name}
		storedLength := len("ps1{}") + s.keyLength + len(rule.Name) // of ps1{KEY}RULE
		load := sizing.Load{KeyLength: storedLength, Clients: 1, Requests: s.requests, ScriptTime: scriptTime}
		for _, l := range rule.Limits {
			plan := largest(l.Variants)
			load.Limits = append(load.Limits, plan)
			one.Limits = append(one.Limits, plan.String())
			if !l.Key.Global { // otherwise all clients have one key
				load.Clients = s.clients
			}
		}
		one.Size = sizing.Of(load)
		all = append(all, one)
	}
	if len(all) == 0 {
		return withStatus(exitUsage, fmt.Errorf("the policy has no rule %q with limits; %s", wording.Clip(s.rule), wording.Suggest(s.rule, names)))
	}
	if s.output == "json" {
		return writeJSON(out, struct {
			Rules []ruleSize  `json:"rules"`
			Total sizing.Size `json:"total"`
		}{all, total(all)})
	}
	return s.print(out, all)
}

func (s *sizeCommand) check() error {
	const maxClients = int64(10_000_000_000)
	const maxRequests, maxKeyLength = 1_000_000_000, 128
	isInRange := s.requests >= 0 && s.requests <= maxRequests // false for NaN
	switch {
	case s.config == "":
		return fmt.Errorf("a policy is missing; write --config rules.yaml")
	case s.clients < 1 || s.clients > maxClients:
		return fmt.Errorf("--clients is %d; write 1 to %d", s.clients, maxClients)
	case !isInRange:
		return fmt.Errorf("--requests is %g; write 0 to %d", s.requests, maxRequests)
	case s.keyLength < 1 || s.keyLength > maxKeyLength:
		return fmt.Errorf("--key-length is %d; write 1 to %d: longer keys are stored as a hash", s.keyLength, maxKeyLength)
	}
	return nil
}

// largest returns the variant that needs the most memory: that of the tier with the largest limit.
func largest(variants []*penstock.Plan) *penstock.Plan {
	most := variants[0]
	for _, v := range variants[1:] {
		if v.Capacity() > most.Capacity() {
			most = v
		}
	}
	return most
}

func total(all []ruleSize) (sum sizing.Size) {
	sizes := make([]sizing.Size, len(all))
	for i := range all {
		sizes[i] = all[i].Size
	}
	return sizing.Sum(sizes)
}

func (s *sizeCommand) print(out io.Writer, all []ruleSize) error {
	for _, r := range all {
		printable.Fprintf(out, "%s: %s\n", r.Rule, strings.Join(r.Limits, "; "))
		w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
		if r.Memory == int64(r.BytesPerClient) {
			printable.Fprintf(w, "   memory\t%s: one key for all clients\n", sizing.Bytes(r.Memory))
		} else {
			printable.Fprintf(w, "   memory\t%s: %d clients, %d bytes each\n", sizing.Bytes(r.Memory), s.clients, r.BytesPerClient)
		}
		printable.Fprintf(w, "   a key stays\tat most %s after the last request\n", r.LiveFor)
		printable.Fprintf(w, "   decision\t%.1f us of Redis' processor time\n", r.ScriptMicros)
		printable.Fprintf(w, "   one key\tplan for at most %d decisions/s, because one server decides it\n", r.PerKey)
		if err := w.Flush(); err != nil {
			return err
		}
		fmt.Fprintln(out)
	}
	sum := total(all)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	printable.Fprintf(w, "maxmemory\t%s: 1.5 times %s, and 64 MB\n", sizing.Bytes(sum.MaxMemory), sizing.Bytes(sum.Memory))
	printable.Fprintf(w, "commands\tat most %d/s; requests that arrive together share one\n", sum.Calls)
	printable.Fprintf(w, "processor\t%.2f cores of Redis, at 70%% each: %d %s\n", sum.Cores, sum.Servers, plural(sum.Servers, "server"))
	printable.Fprintf(w, "network\t%s/s\n", sizing.Bytes(sum.Bandwidth))
	return w.Flush()
}
