// Command surge sends 2,000 riders to a service that can handle 150 requests a second: without
// limits, with limits for each rider, and with a limit for the whole backend as well. The last run
// is done twice: with riders who wait for Retry-After, and with riders who do not. The command
// prints the results, and fails if the limit for the backend did not help the patient riders.
//
//	go run ./surge [-penstock PROGRAM] [-short | -full] [-riders KIND] [-save FILE]
//	go run ./surge -target URL
//
// With -penstock, the limits are in a process of penstock serve, whose counters are in Redis.
// Without it, they are in this process. With -target, riders send their requests to a service that
// runs already.
package main

import (
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"runtime"
	"time"

	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/examples/internal/demo"
	"github.com/penstock/penstock/httplimit"
	"github.com/penstock/penstock/internal/testing/loadaverage"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/policy/policyfile"
)

// surge lasts 14 seconds, and stands for three minutes. All riders arrive within two seconds
// instead of ten. The timeouts of riders and of the connection pool are a third of those in
// useFullTimes.
var surge = scenario{
	riders:        2000,
	arrivalPeriod: 2 * time.Second,
	duration:      14 * time.Second,
	minPause:      100 * time.Millisecond,
	maxPause:      300 * time.Millisecond,
	timeout:       13 * time.Second,
	poolTimeout:   10 * time.Second,
	endpoints: []endpoint{
		{name: "ride-request", weight: 5, method: http.MethodPost, path: "/api/rides/request"},
		{name: "fare-estimate", weight: 2, method: http.MethodGet, path: "/api/fares/estimate"},
		{name: "drivers-nearby", weight: 1, method: http.MethodGet, path: "/api/drivers/nearby"},
	},
}

// useFullTimes changes the scenario to three minutes, with 200 riders a second in the first ten
// seconds.
func (s *scenario) useFullTimes() {
	s.arrivalPeriod, s.duration, s.timeout, s.poolTimeout = 10*time.Second, 3*time.Minute, 40*time.Second, 30*time.Second
}

// shorten changes the scenario to half of the riders in four seconds, for tests. Without limits, a
// request then waits at most three seconds for a connection of the pool.
func (s *scenario) shorten() {
	s.isShort, s.riders = true, s.riders/2
	s.arrivalPeriod, s.duration, s.timeout, s.poolTimeout = time.Second, 4*time.Second, 4*time.Second, 3*time.Second
}

// A variant is a run of the surge.
type variant struct {
	name         string
	policy       string // a file of the examples; "": no limits
	areImpatient bool   // the riders
}

// variants returns the runs for a kind of riders: patient, impatient, or both. The first is without
// limits, and the second has limits for each rider only. No rider is denied there, so both kinds do
// the same. The others have a limit for the backend too.
func variants(riders string) ([]variant, error) {
	isPatient, isImpatient := riders != "impatient", riders != "patient"
	if isPatient && isImpatient && riders != "both" {
		return nil, fmt.Errorf("-riders is %q; want patient, impatient or both", riders)
	}
	list := []variant{
		{name: "without limits", areImpatient: !isPatient},
		{name: "limits for each client", policy: clientsOnly, areImpatient: !isPatient},
	}
	if isPatient {
		list = append(list, variant{name: "for the backend too", policy: withBackend})
	}
	if isImpatient {
		list = append(list, variant{name: "for the backend too, impatient clients", policy: withBackend, areImpatient: true})
	}
	return list, nil
}

const (
	clientsOnly = "rides.yaml"
	withBackend = "surge/surge.yaml"
)

func main() {
	log.SetFlags(0)
	binary := flag.String("penstock", "", "limit by penstock serve of this `program`, with a real Redis; default: by middleware, in memory")
	isShort := flag.Bool("short", false, "run half of the riders for four seconds each time, and do not check times")
	isFull := flag.Bool("full", false, "run for three minutes each time")
	riders := flag.String("riders", "both", "the `kind` of riders: patient ones wait for Retry-After after a 429, impatient ones do not; or both")
	target := flag.String("target", "", "send the riders to the service at this `URL`, and run nothing else")
	save := flag.String("save", "", "write the table to this Markdown `file`, between its lines for this run; needs an idle machine")
	flag.Parse()
	switch {
	case *isFull:
		surge.useFullTimes()
	case *isShort:
		surge.shorten()
	}
	runs, err := variants(*riders)
	if err != nil {
		log.Fatal(err)
	}
	if *target != "" {
		if err := runAt(*target, runs); err != nil {
			log.Fatal(err)
		}
		return
	}
	failures, err := runAll(runs, *binary, *save)
	if err != nil {
		log.Fatal(err)
	}
	for _, failure := range failures {
		fmt.Println("FAILED:", failure)
	}
	if len(failures) > 0 {
		os.Exit(1)
	}
}

// runAt sends the surge to a service that runs already, once for each kind of riders.
func runAt(target string, runs []variant) error {
	to, err := url.Parse(target)
	if err != nil || to.Scheme != "http" || to.Host == "" {
		return fmt.Errorf("-target is %q; want a URL such as http://localhost:8080", target)
	}
	measurement, err := loadaverage.Begin(os.Stdout, "")
	if err != nil {
		return err
	}
	var columns []column
	for _, v := range runs[2:] { // the others differ by what is in front of the backend
		columns = append(columns, column{kindOf(v), surge.with(v).run(transport(), to, nil)})
	}
	measurement.End()
	fmt.Print(table(surge.endpoints, columns))
	return nil
}

func kindOf(v variant) string {
	if v.areImpatient {
		return "impatient clients"
	}
	return "patient clients"
}

// with returns the scenario for a variant.
func (s scenario) with(v variant) *scenario {
	s.areImpatient = v.areImpatient
	return &s
}

// runAll runs all variants, prints and saves the table, and returns the missed goals.
func runAll(runs []variant, binary, save string) (failures []string, err error) {
	limit := inProcess
	if binary != "" {
		limit = served(binary)
	}
	page, err := openPage(save, surge.title(binary != ""))
	if err != nil {
		return nil, err
	}
	measurement, err := loadaverage.Begin(os.Stdout, save)
	if err != nil {
		return nil, err
	}
	var columns []column
	for _, v := range runs {
		r, err := runOne(v, limit)
		if err != nil {
			return nil, err
		}
		columns = append(columns, column{v.name, r})
		runtime.GC() // so that the next run does not collect garbage of this one
	}
	record := measurement.End()
	text := table(surge.endpoints, columns)
	fmt.Print(text)
	for i, v := range runs[2:] {
		// The test checks impatient riders on a simulated clock. Here they need 10,000 requests a second
		// from a machine that also runs everything else, so their times depend on its cores.
		if !v.areImpatient {
			failures = append(failures, check(columns[0].result, columns[2+i].result, !surge.isShort)...)
		}
	}
	return failures, page.save(fmt.Sprintf("On %s: %v\n\n%s", record.Date, record, text))
}

// title is the name of the table in docs/performance.md.
func (s *scenario) title(isServed bool) string {
	where := "in memory"
	if isServed {
		where = "by penstock serve with Redis"
	}
	return fmt.Sprintf("%v, %s", s.duration, where)
}

// A limiter starts a proxy with the limits of a policy in front of a target.
type limiter func(file string, target *url.URL) (front *url.URL, stop func(), err error)

// runOne runs the surge with a backend of its own.
func runOne(v variant, limit limiter) (*result, error) {
	service := newBackend(surge.poolTimeout)
	server, target, err := serve(service)
	if err != nil {
		return nil, err
	}
	defer server.Close()
	if v.policy != "" {
		front, stop, err := limit(demo.File(v.policy), target)
		if err != nil {
			return nil, err
		}
		defer stop()
		target = front
	}
	return surge.with(v).run(transport(), target, service), nil
}

// inProcess is a limiter in this process.
func inProcess(file string, target *url.URL) (front *url.URL, stop func(), err error) {
	handler, err := proxy(file, target, transport())
	if err != nil {
		return nil, nil, err
	}
	gateway, front, err := serve(handler)
	if err != nil {
		return nil, nil, err
	}
	return front, func() { gateway.Close() }, nil
}

// proxy makes a reverse proxy with the limits of a policy.
func proxy(file string, target *url.URL, transport http.RoundTripper) (http.Handler, error) {
	p, err := policyfile.Load(file, policyfile.Options{Sections: []policyfile.Section{httplimit.DefaultConfig()}})
	if err != nil {
		return nil, err
	}
	controller, err := admission.New(memstore.New(memstore.Options{}), p.Rules, admission.Options{})
	if err != nil {
		return nil, err
	}
	gate, err := httplimit.New(controller, httplimit.Options{})
	if err != nil {
		return nil, err
	}
	return gate.Middleware(&httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport: transport,
	}), nil
}

// serve serves on a free port, and returns its URL.
func serve(handler http.Handler) (*http.Server, *url.URL, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	go server.Serve(listener)
	return server, &url.URL{Scheme: "http", Host: listener.Addr().String()}, nil
}

// transport returns a transport that can keep a connection for each rider.
func transport() *http.Transport {
	return &http.Transport{MaxIdleConnsPerHost: surge.riders, DisableCompression: true}
}
