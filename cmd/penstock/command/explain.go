package command

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/cmd/penstock/internal/console/explain"
	"github.com/penstock/penstock/cmd/penstock/internal/console/keylimits"
	"github.com/penstock/penstock/cmd/penstock/internal/console/redisops"
	"github.com/penstock/penstock/cmd/penstock/internal/serve/demopolicy"
	"github.com/penstock/penstock/cmd/penstock/internal/serve/settings"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/regions"
	"github.com/penstock/penstock/policy"
	"github.com/penstock/penstock/policy/policyfile"
	"github.com/penstock/penstock/redisstore"
)

func newExplain(algorithms []*algorithm.Algorithm) *cobra.Command {
	e := explainCommand{algorithms: algorithms}
	c := &cobra.Command{
		Use:   "explain [flags] URL-OR-PATH",
		Short: "Show which limits apply to a request",
		Long: "explain shows which rules match a request, its identity, which limits are charged in which order, and their keys in the\n" +
			"store. It shows the most that each limit admits, also while the store fails. With --store it also shows what is left.\n" +
			"It charges nothing. The exit status is 3 if the request would be rejected, else 0.\n\n" +
			"Without --config it uses the demo policy. It reads the secret that hashes keys in Redis from the same places as serve:\n" +
			"PENSTOCK_KEY_HASH_SECRET, PENSTOCK_KEY_HASH_SECRET_FILE or the policy's server section.",
		Example: "  penstock explain -X POST /api/rides/request -H 'X-API-Key: a'\n" +
			"  penstock explain --config rules.yaml --store redis://localhost:6379 -o json https://api.example.com/search?q=1",
		Args:              argumentCount(1, 1, "one URL or path, as in: penstock explain --config rules.yaml /api/rides"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(c *cobra.Command, args []string) error { return e.run(c, args[0]) },
	}
	f := c.Flags()
	f.StringVar(&e.config, "config", "", "policy file (PENSTOCK_CONFIG)")
	f.StringVarP(&e.method, "request", "X", "GET", "method of the request")
	f.StringArrayVarP(&e.headers, "header", "H", nil, "header field, such as 'X-API-Key: a'; repeatable")
	f.StringArrayVar(&e.descriptor, "descriptor", nil, "entry of a descriptor that Envoy sends, such as 'remote_address=192.0.2.7'; repeatable")
	f.StringVar(&e.from, "from", "192.0.2.1", "address of the client")
	f.Int64Var(&e.size, "size", 0, "size of the body in bytes; -1 if it is unknown")
	f.StringVar(&e.store, "store", "", "URL of Redis or Valkey, to show what is left")
	f.StringVar(&e.prefix, "prefix", "", "prefix of all keys, as for serve (PENSTOCK_PREFIX)")
	f.StringVar(&e.instances, "min-instances", "", "number of instances, for the bounds while the store fails (PENSTOCK_MIN_INSTANCES; default 1). With --store, the running instances are counted too, and the larger number applies")
	addOutput(c, &e.output)
	_ = c.RegisterFlagCompletionFunc("config", completeYAML)
	return c
}

type explainCommand struct {
	config, method, from, store, prefix, instances, output string
	headers, descriptor                                    []string
	size                                                   int64
	algorithms                                             []*algorithm.Algorithm
}

func (e *explainCommand) run(c *cobra.Command, target string) error {
	request, err := explain.NewRequest(e.method, target, e.headers, e.from, e.size)
	if err != nil {
		return withStatus(exitUsage, err)
	}
	p, s, err := e.policy(c)
	if err != nil {
		return err
	}
	defer p.Close()
	p.Start(nil) // reads the keys that verify tokens; if that fails, no token is valid
	rules := p.Rules
	options := redisstore.Options{Prefix: s.Prefix, Secret: s.KeyHashSecret}
	descriptor, err := explain.ReadDescriptor(e.descriptor)
	if err != nil {
		return withStatus(exitUsage, fmt.Errorf("--%w", err))
	}
	ctx, cancel := context.WithTimeout(c.Context(), storeTimeout)
	defer cancel()
	var store *redisstore.Store // nil: no store is read
	instances := int(s.MinInstances)
	if e.store != "" && e.store != "memory" {
		if store, err = redisstore.Open(e.store, options); err != nil {
			return withStatus(exitUsage, err)
		}
		defer store.Close()
		if _, n, err := redisops.ReadSummaries(ctx, store); err == nil { // if the store fails, Peek returns why
			instances = max(instances, n)
		}
	}
	setup := s.Regions()
	var look regions.Look
	if store != nil && slices.ContainsFunc(rules.Plans(), regions.IsAcross) {
		if look, err = regions.LookAt(ctx, store); err == nil { // if the store fails, Peek returns why
			setup.Delay = cmp.Or(look.Delay, setup.Delay)
		}
	}
	report, charges, err := explain.Explain(rules, request, descriptor, options, instances, setup)
	if err != nil {
		return withStatus(exitUsage, err)
	}
	if err := report.CheckCost(charges); err != nil {
		return withStatus(exitUsage, err)
	}
	var storeErr error
	if store != nil {
		split := penstock.Wrap(store, guard.Split(rules.Settings)) // as serve does
		report.Enforce(charges, func(p *penstock.Plan) *penstock.Plan { return look.Enforced(p, s.RegionInterval) })
		if err := report.Peek(ctx, split, charges); err != nil {
			reader := &keylimits.Reader{Store: split, URL: e.store, Options: options}
			err = cmp.Or(readCorrupt(ctx, reader, rules, report), err)
			storeErr = withStatus(exitUnreachable, err) // returned after the report, which helps to fix the store
		}
	}
	err = printReport(c.OutOrStdout(), e.output, report, report.Print)
	if err == nil && storeErr != nil {
		return storeErr
	}
	isDenied := report.Allowed != nil && !*report.Allowed // nil if it is not known
	if err == nil && (report.List == "deny" || isDenied) {
		return statusOnly(exitDenied)
	}
	return err
}

// readCorrupt returns an error that names the corrupt keys of a report, and the command that
// deletes their values. It returns nil if no key is corrupt.
func readCorrupt(ctx context.Context, reader *keylimits.Reader, rules *policy.Rules, report *explain.Report) error {
	var corrupt []keylimits.Limit
	for _, c := range report.Charges {
		if !c.IsCorrupt {
			continue
		}
		limits, _ := keylimits.Find(rules, c.Identity, c.Rule)
		isCharged := func(l keylimits.Limit) bool { return l.Limit == c.Limit && l.Kind == keylimits.Enforced }
		if i := slices.IndexFunc(limits, isCharged); i >= 0 { // the first tier: all tiers share the key
			corrupt = append(corrupt, limits[i])
		}
	}
	_, err := reader.Read(ctx, corrupt)
	return err
}

// policy loads the policy, and the settings of serve that explain needs.
func (e *explainCommand) policy(c *cobra.Command) (p *policyfile.Policy, s settings.Settings, err error) {
	s, err = settings.Load(settings.Sources{
		Flags:   changed(c, map[string]*string{"config": &e.config, "prefix": &e.prefix, "min-instances": &e.instances}),
		Environ: os.Environ(),
		File:    policyLoader(&p, e.algorithms),
		Only:    []string{"prefix", "key-hash-secret", "min-instances", "region", "region-peers", "region-interval", "region-delay"},
	})
	if err == nil && p == nil {
		const hasTraffic = false
		fmt.Fprintln(c.ErrOrStderr(), "penstock: no --config: using the demo policy")
		p, err = demopolicy.Load(settings.PolicyOptions(e.algorithms...), hasTraffic)
	}
	return p, s, err
}
