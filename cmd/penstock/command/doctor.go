package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/cmd/penstock/internal/console/activity"
	"github.com/penstock/penstock/cmd/penstock/internal/console/adminapi"
	"github.com/penstock/penstock/cmd/penstock/internal/serve/settings"
	"github.com/penstock/penstock/cmd/penstock/internal/tools/doctor"
	"github.com/penstock/penstock/cmd/penstock/internal/tools/storebench"
	"github.com/penstock/penstock/policy/policyfile"
	"github.com/penstock/penstock/redisstore"
)

func newDoctor(algorithms []*algorithm.Algorithm) *cobra.Command {
	var output, measured string
	var isStrict bool
	given := storeFlags{algorithms: algorithms}
	var instance adminFlags
	c := &cobra.Command{
		Use:   "doctor [flags]",
		Short: "Find what is wrong with Redis or Valkey",
		Long: "doctor examines the servers of the store: whether they can be reached and make decisions, the user's rights, eviction and\n" +
			"memory, latency, slow commands, clocks, persistence, replication, the Cluster or the Sentinels, keys, instances and other\n" +
			"regions. For each problem it shows the consequence, and what to do. It reads the same flags, variables and file as serve.\n" +
			"Run it with the URL of serve, so that it checks the rights of that user. If a right is missing, it names the right and\n" +
			"goes on; penstock acl --role doctor prints a user that has all rights for it. It only reads, except for one probe key on\n" +
			"each primary, which expires in seconds.\n\n" +
			"Exit status: 0 no problem, 6 a problem (with --strict also a warning, or a check that could not run), 5 no server\n" +
			"answers, 4 the configuration is wrong, 2 the command line is wrong.",
		Example: "  penstock doctor --store redis://localhost:6379\n  penstock doctor --config rules.yaml --strict -o json",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			s, p, err := given.load(c, "store-timeout", "region", "region-peers", "region-interval")
			if err != nil {
				return err
			}
			o := doctor.Options{URL: s.Store, Name: s.StoreName(), Keys: redisstore.Options{Prefix: s.Prefix, Secret: s.KeyHashSecret}, StoreTimeout: s.StoreTimeout,
				ReadInstance: readInstance, Region: s.Region, Peers: s.RegionPeers, Interval: s.RegionInterval}
			if p != nil {
				defer p.Close()
				o.Digest = p.Digest
			}
			if instance.Address != "" {
				if o.AskInstance, err = askInstance(&instance); err != nil {
					return err
				}
			}
			if measured != "" {
				r, err := readBench(measured)
				if err != nil {
					return withStatus(exitInvalid, err)
				}
				i := slices.IndexFunc(r.Steps, func(s storebench.Step) bool { return s.Callers == 1 })
				if i < 0 {
					return withStatus(exitInvalid, fmt.Errorf("--measured: %s has no step with one caller; write it by: penstock bench --store URL --callers 1 --yes -o json", measured))
				}
				o.Measured = time.Duration(r.Steps[i].P50 * float64(time.Microsecond))
			}
			report, err := doctor.Run(c.Context(), o)
			if err != nil {
				return err
			}
			leastProblem := doctor.Failed
			if isStrict {
				leastProblem = doctor.Unknown // Warning is between Unknown and Failed
			}
			err = printReport(c.OutOrStdout(), output, report, report.Print)
			switch {
			case err != nil:
				return err
			case !report.IsReached():
				return statusOnly(exitUnreachable)
			case report.Has(leastProblem):
				return statusOnly(exitProblem)
			}
			return nil
		},
	}
	given.add(c, "store-timeout", "region", "region-peers", "region-interval")
	instance.add(c, "admin address of an instance, which is asked how the store works for it")
	c.Flags().StringVar(&measured, "measured", "", "file with an earlier output of penstock bench -o json from this machine, to compare the latency with")
	c.Flags().BoolVar(&isStrict, "strict", false, "treat warnings, and checks that could not run, as problems")
	addOutput(c, &output)
	return c
}

func readInstance(summary string) (doctor.Instance, error) {
	s, err := activity.ParseSummary(summary)
	if err != nil {
		return doctor.Instance{}, err
	}
	return doctor.Instance{Host: s.Host, Version: s.Version, Digest: s.Digest, Health: s.Health, Seed: s.Seed, IsChargedTwice: s.IsChargedTwice}, nil
}

func askInstance(f *adminFlags) (func(context.Context) (doctor.Instance, error), error) {
	instance, err := f.openAsOperator()
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) (doctor.Instance, error) {
		defer instance.Close()
		var s adminapi.State
		if err := instance.send(ctx, "state", nil, &s); err != nil {
			return doctor.Instance{}, err
		}
		i := doctor.Instance{Host: f.Address}
		if s.Store.IsFailing {
			i.Health = cmp.Or(s.Store.Reason, "unknown")
		}
		return i, nil
	}, nil
}

// storeFlags are the settings of serve that name a store and the policy of its limits. They come
// from the same sources as those of serve.
type storeFlags struct {
	algorithms []*algorithm.Algorithm
	texts      map[string]*string // values of the flags, by name
}

var storeSettings = []string{"config", "store", "prefix"}

func (f *storeFlags) add(c *cobra.Command, further ...string) {
	f.texts = make(map[string]*string)
	names := slices.Concat(storeSettings, further)
	for _, row := range settings.Table {
		if slices.Contains(names, row.Name) {
			f.texts[row.Name] = c.Flags().String(row.Name, "", row.Help+" ("+row.Env()+")")
		}
	}
	_ = c.RegisterFlagCompletionFunc("config", completeYAML)
}

// changed returns the values of the flags that the command line has.
func changed(c *cobra.Command, texts map[string]*string) map[string]string {
	given := make(map[string]string)
	for name, text := range texts {
		if c.Flags().Changed(name) {
			given[name] = *text
		}
	}
	return given
}

var errNoStore = withStatus(exitUsage, errors.New("no store is named; write --store redis://localhost:6379, or set PENSTOCK_STORE"))

// load loads the settings, and the policy if they name one. It fails if no store is named.
func (f *storeFlags) load(c *cobra.Command, further ...string) (s settings.Settings, p *policyfile.Policy, err error) {
	s, err = settings.Load(settings.Sources{
		Flags:   changed(c, f.texts),
		Environ: os.Environ(),
		File:    policyLoader(&p, f.algorithms),
		Only:    append([]string{"store", "prefix", "key-hash-secret"}, further...),
	})
	if err == nil && s.Store == "" {
		err = errNoStore
	}
	if err != nil && p != nil {
		p.Close()
		p = nil
	}
	return s, p, err
}
