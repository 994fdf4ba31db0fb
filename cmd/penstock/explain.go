package main

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/net/http/httpguts"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/cmd/penstock/internal/explain"
	"github.com/penstock/penstock/cmd/penstock/internal/rides"
	"github.com/penstock/penstock/cmd/penstock/internal/settings"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/policy"
	"github.com/penstock/penstock/redisstore"
)

// newExplain is the command that tells what a policy makes of a request.
func newExplain() *cobra.Command {
	var e explanation
	c := &cobra.Command{
		Use:   "explain [flags] URL-OR-PATH",
		Short: "Tell what a policy makes of one request",
		Long: "explain tells which rules match a request, who pays, which limits are charged, in what order, and under which keys of\n" +
			"the store, and how much each limit admits at most, whatever happens. It charges nothing. With --store it also asks what is\n" +
			"left. The exit status is 0 if the request would be let in as far as is known, and 3 if not.\n\n" +
			"Without a policy it explains the demo's. The secret that hides identities in Redis is found where serve finds it:\n" +
			"in PENSTOCK_SECRET, PENSTOCK_SECRET_FILE or the policy's server section.",
		Example: "  penstock explain -X POST /api/rides/request -H 'X-API-Key: a'\n" +
			"  penstock explain --config rules.yaml --store redis://localhost:6379 -o json https://api.example.com/search?q=1",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(c *cobra.Command, args []string) error { return e.run(c, args[0]) },
	}
	f := c.Flags()
	f.StringVar(&e.config, "config", "", "the file with the policy (PENSTOCK_CONFIG)")
	f.StringVarP(&e.method, "request", "X", "GET", "the method")
	f.StringArrayVarP(&e.headers, "header", "H", nil, "a header field, as in 'X-API-Key: a'; may be repeated")
	f.StringVar(&e.from, "from", "192.0.2.1", "the address that the request comes from")
	f.Int64Var(&e.size, "size", 0, "the size of its body, in bytes; -1: not known beforehand")
	f.StringVar(&e.store, "store", "", "the URL of Redis, to ask what is left")
	f.StringVar(&e.prefix, "prefix", "", "how the names of keys begin, as for serve (PENSTOCK_PREFIX)")
	f.StringVar(&e.instances, "instances", "", "how many gates there are, for the bounds (PENSTOCK_INSTANCES; default 1)")
	f.StringVarP(&e.output, "output", "o", "text", "text for people, json for programs")
	_ = c.RegisterFlagCompletionFunc("config", completeYAML)
	_ = c.RegisterFlagCompletionFunc("output", completeOutput)
	return c
}

type explanation struct {
	config, method, from, store, prefix, instances, output string
	headers                                                []string
	size                                                   int64
}

func (e *explanation) run(c *cobra.Command, target string) error {
	if err := checkOutput(e.output, "text", "json"); err != nil {
		return err
	}
	request, err := e.request(target)
	if err != nil {
		return coded(exitUsage, err)
	}
	rules, s, err := e.policy(c)
	if err != nil {
		return err
	}
	defer rules.Close()
	rules.Start(nil)
	keys := redisstore.Options{Prefix: s.Prefix, Secret: s.Secret}
	report, charges, err := explain.Explain(rules, request, keys, int(s.Instances))
	if err != nil {
		return coded(exitUsage, err)
	}
	if err := report.Judge(charges); err != nil {
		return coded(exitUsage, err)
	}
	var unanswered error
	if e.store != "" && e.store != "memory" {
		store, err := redisstore.Open(e.store, keys)
		if err != nil {
			return coded(exitUsage, err)
		}
		defer store.Close()
		ctx, cancel := context.WithTimeout(c.Context(), 5*time.Second)
		defer cancel()
		split := penstock.Wrap(store, guard.Split(guard.SplitOptions{Limits: rules.Settings})) // as serve counts
		if err := report.Peek(ctx, split, charges); err != nil {
			unanswered = coded(exitUnreachable, err) // the rules and the names of keys help to mend it
		}
	}
	if e.output == "json" {
		err = writeJSON(c.OutOrStdout(), report)
	} else {
		err = report.Print(c.OutOrStdout())
	}
	if err == nil && unanswered != nil {
		return unanswered
	}
	if err == nil && (report.Listed == "deny" || report.Allowed != nil && !*report.Allowed) {
		return silent(exitDenied)
	}
	return err
}

// policy is the one to explain, with serve's settings that matter here.
func (e *explanation) policy(c *cobra.Command) (rules *policy.Rules, s settings.Settings, err error) {
	given := make(map[string]string)
	for name, text := range map[string]string{"config": e.config, "prefix": e.prefix, "instances": e.instances} {
		if c.Flags().Changed(name) {
			given[name] = text
		}
	}
	s, err = settings.Load(settings.Sources{
		Flags:   given,
		Environ: os.Environ(),
		File: func(path string) (server policy.ServerConfig, err error) {
			if rules, err = policy.Load(path); err == nil {
				server = rules.Server()
			}
			return server, err
		},
		Only: []string{"prefix", "secret", "instances"},
	})
	if err == nil && rules == nil {
		fmt.Fprintln(c.ErrOrStderr(), "penstock: no --config: these are the demo's rules")
		rules, err = rides.Rules()
	}
	return rules, s, err
}

// request is the request that the flags describe, as a server would have it.
func (e *explanation) request(target string) (*http.Request, error) {
	if strings.HasPrefix(target, "/") {
		target = "http://localhost" + target
	}
	u, err := url.Parse(target)
	if err != nil || u.Host == "" {
		return nil, fmt.Errorf("%q is neither a path nor a URL; write /path or http://host/path", target)
	}
	r, err := http.NewRequest(e.method, u.String(), nil)
	if err != nil {
		return nil, err
	}
	r.URL.Scheme, r.URL.Host = "", ""
	r.ContentLength = e.size
	for _, line := range e.headers {
		name, value, ok := strings.Cut(line, ":")
		value = strings.Trim(value, " \t")
		switch {
		case !ok:
			return nil, fmt.Errorf("the header %q has no colon; write 'Name: value'", line)
		case !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(value):
			return nil, fmt.Errorf("the header %q cannot be sent; write 'Name: value', without spaces in the name", line)
		case strings.EqualFold(name, "Host"):
			r.Host = value
			continue
		}
		r.Header.Add(name, value)
	}
	address, err := netip.ParseAddr(e.from)
	if err != nil {
		return nil, fmt.Errorf("%q is not an address; write 192.0.2.1 or 2001:db8::1", e.from)
	}
	r.RemoteAddr = netip.AddrPortFrom(address, 1024).String()
	return r, nil
}
