package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/cmd/penstock/internal/console/adminclient"
	"github.com/penstock/penstock/cmd/penstock/internal/console/explain"
	"github.com/penstock/penstock/cmd/penstock/internal/serve/settings"
	"github.com/penstock/penstock/cmd/penstock/internal/text/printable"
	"github.com/penstock/penstock/internal/wording"
)

func newCheck() *cobra.Command {
	d := checkCommand{api: adminclient.Options{Flag: "api"}}
	c := &cobra.Command{
		Use:   "check [URL-OR-PATH] [flags]",
		Short: "Request one decision from a running instance",
		Long: "check sends one request to the check API of a running instance, and prints its decision. The request is one of these:\n" +
			"  a path or URL with --request, --header, --descriptor and --from   the policy decides, as in the proxy\n" +
			"  --rule and --key                                                  this rule decides under the key, such as user:42\n" +
			"  --limit and --key                                                 this limit decides, if allow_caller_limits permits it\n" +
			"An allowed request is charged. With --cost 0 nothing is, and the answer has what is left. The token comes from\n" +
			"PENSTOCK_CALLER_TOKEN or PENSTOCK_CALLER_TOKEN_FILE, and the default address from PENSTOCK_API.\n\n" +
			"Exit status: 0 allowed, 3 denied, 2 the request is wrong, 4 the token is wrong or missing, 5 no decision.",
		Example: "  penstock check --api localhost:8090 --rule tokens --key user:42 --cost 100\n" +
			"  penstock check --api localhost:8090 -X POST /api/rides/request -H 'X-API-Key: a' && ./deploy\n" +
			"  penstock check --api localhost:8090 --limit '5/h' --key job:nightly -o json",
		Args: argumentCount(0, 1, "at most one URL or path, as in: penstock check --api localhost:8090 /api/rides"),
		RunE: func(c *cobra.Command, args []string) error {
			return d.run(c, args)
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	f := c.Flags()
	f.StringVar(&d.api.Address, "api", "", "address of the check API, the --api of its serve, as host:port, https://host:port or unix:/path/of.sock")
	f.StringVar(&d.api.CA, "api-ca", "", "PEM file of the authorities of the API's certificate (default: those of the system)")
	f.StringVar(&d.api.Cert, "api-cert", "", "PEM file of a client certificate")
	f.StringVar(&d.api.Key, "api-key", "", "PEM file of the private key of that certificate")
	f.StringVar(&d.rule, "rule", "", "rule that decides")
	f.StringVar(&d.limit, "limit", "", "limit that decides, as in '10/s, burst 20'")
	f.StringVar(&d.key, "key", "", "key of the client for --rule or --limit, such as user:42")
	f.Int64Var(&d.cost, "cost", 1, "units of the request, for --rule or --limit")
	f.StringVarP(&d.method, "request", "X", "GET", "method of the request")
	f.StringArrayVarP(&d.headers, "header", "H", nil, "header field, such as 'X-API-Key: a'; repeatable")
	f.StringArrayVar(&d.descriptors, "descriptor", nil, "descriptor, such as 'plan=pro'; repeatable")
	f.StringVar(&d.from, "from", "192.0.2.1", "address of the client")
	addOutput(c, &d.output)
	return c
}

type checkCommand struct {
	api                                    adminclient.Options
	rule, limit, key, method, from, output string
	headers, descriptors                   []string
	cost                                   int64
}

type checkDecision struct {
	text       json.RawMessage // of the answer
	Allowed    *bool
	Outcome    string
	Source     string
	RetryAfter int64    `json:"retry_after_ms"` // -1: a repeat is never allowed
	DeniedBy   []string `json:"denied_by"`
	Limits     []struct {
		Limit               string
		Capacity, Remaining int64
		ResetAfter          int64 `json:"reset_after_ms"`
	}
}

func (d *checkCommand) run(c *cobra.Command, args []string) error {
	request, err := d.request(c, args)
	if err != nil {
		return withStatus(exitUsage, err)
	}
	s, err := settings.Load(settings.Sources{Environ: os.Environ(), Only: []string{"api", "caller-token"}})
	if err != nil {
		return err
	}
	if d.api.Token = string(s.CallerToken); d.api.Address == "" {
		d.api.Address = s.API
	}
	if d.api.Address == "" {
		return withStatus(exitUsage, errors.New("the address of the check API is missing; write --api localhost:8090, or set PENSTOCK_API"))
	}
	decision, err := d.ask(c.Context(), request)
	if err != nil {
		return err
	}
	if d.output == "json" {
		err = writeJSON(c.OutOrStdout(), decision.text)
	} else {
		decision.print(c.OutOrStdout())
	}
	if err == nil && !*decision.Allowed {
		return statusOnly(exitDenied)
	}
	return err
}

func (d *checkCommand) request(c *cobra.Command, args []string) (map[string]any, error) {
	hasTarget := len(args) > 0
	switch {
	case hasTarget && (d.rule != "" || d.limit != "" || d.key != "" || c.Flags().Changed("cost")):
		return nil, errors.New("a URL or path is decided by the policy; omit --rule, --limit, --key and --cost, or the URL")
	case !hasTarget && (d.rule == "") == (d.limit == ""):
		return nil, errors.New("write a URL or path, or --rule and --key, or --limit and --key")
	case !hasTarget && d.key == "":
		return nil, errors.New("the key is missing; write --key user:42")
	case d.rule != "":
		return map[string]any{"rule": d.rule, "key": d.key, "cost": d.cost}, nil
	case d.limit != "":
		if _, err := penstock.ParseRate(d.limit); err != nil {
			return nil, err
		}
		return map[string]any{"key": d.key, "cost": d.cost, "limits": []any{map[string]any{"rate": d.limit}}}, nil
	}
	r, err := explain.NewRequest(d.method, args[0], d.headers, d.from, 0)
	if err != nil {
		return nil, err
	}
	attributes := map[string]any{"method": r.Method, "path": r.URL.EscapedPath(), "address": d.from}
	if isURL := !strings.HasPrefix(args[0], "/"); isURL || r.Host != "localhost" {
		attributes["host"] = r.Host
	}
	if r.URL.RawQuery != "" {
		attributes["query"] = r.URL.RawQuery
	}
	if headers, err := single(r.Header); err != nil {
		return nil, fmt.Errorf("header %w", err)
	} else if len(headers) > 0 {
		attributes["headers"] = headers
	}
	all, err := explain.ReadDescriptor(d.descriptors)
	if err != nil {
		return nil, fmt.Errorf("--%w", err)
	}
	if descriptors, err := single(all); err != nil {
		return nil, fmt.Errorf("descriptor %w", err)
	} else if len(descriptors) > 0 {
		attributes["descriptors"] = descriptors
	}
	return map[string]any{"attributes": attributes}, nil
}

// single returns the only value of each name.
func single(lists map[string][]string) (map[string]string, error) {
	values := make(map[string]string)
	for name, list := range lists {
		if len(list) > 1 {
			return nil, fmt.Errorf("%q is given twice; the check API takes one value", wording.Clip(name))
		}
		values[name] = list[0]
	}
	return values, nil
}

func (d *checkCommand) ask(ctx context.Context, request map[string]any) (*checkDecision, error) {
	client, err := adminclient.New(d.api)
	if err != nil {
		return nil, withStatus(exitUsage, err)
	}
	defer client.Close()
	body, err := json.Marshal(request)
	if err != nil {
		return nil, err
	}
	status, text, err := client.Send(ctx, "/v1/check", body)
	if err != nil {
		return nil, withStatus(exitUnreachable, err)
	}
	decision, problem := &checkDecision{text: text}, struct{ Code, Detail string }{}
	if err := json.Unmarshal(text, decision); status == http.StatusOK && err == nil && decision.Allowed != nil {
		return decision, nil
	}
	if err := json.Unmarshal(text, &problem); err != nil || problem.Code == "" {
		return nil, withStatus(exitUsage, fmt.Errorf("%s returned status %d: the answer is not that of the check API; check that --api is the api address of an instance", d.api.Address, status))
	}
	return nil, refusal(d.api.Address, status, shortened(problem.Detail), "PENSTOCK_CALLER_TOKEN")
}

func (d *checkDecision) print(out io.Writer) {
	printable.Fprintf(out, "%s", d.Outcome)
	if d.Source != "" {
		printable.Fprintf(out, ", decided by %s", d.Source)
	}
	if len(d.DeniedBy) > 0 {
		printable.Fprintf(out, "; denied by %s", strings.Join(d.DeniedBy, ", "))
	}
	switch {
	case *d.Allowed:
	case d.RetryAfter < 0:
		fmt.Fprint(out, "; a retry is never allowed")
	default:
		printable.Fprintf(out, "; retry after %s", inMS(d.RetryAfter))
	}
	fmt.Fprintln(out)
	for _, l := range d.Limits {
		printable.Fprintf(out, "%s: %d of %d left; full after %s\n", l.Limit, l.Remaining, l.Capacity, inMS(l.ResetAfter))
	}
}

func inMS(n int64) string { return wording.Period(time.Duration(n) * time.Millisecond) }
