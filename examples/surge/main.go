// Command surge sends 2,000 riders to a service that can handle 150 requests a second: first
// without limits, then behind Penstock. The command prints the results, and fails if Penstock did
// not help. With -penstock, the limits are in a process of penstock serve, whose counters are in
// Redis.
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
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/policy"
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
		{weight: 5, method: http.MethodPost, path: "/api/rides/request"},
		{weight: 2, method: http.MethodGet, path: "/api/fares/estimate"},
		{weight: 1, method: http.MethodGet, path: "/api/drivers/nearby"},
	},
}

// useFullTimes changes the scenario to three minutes, with 200 riders a second in the first ten
// seconds.
func (s *scenario) useFullTimes() {
	s.arrivalPeriod, s.duration, s.timeout, s.poolTimeout = 10*time.Second, 3*time.Minute, 40*time.Second, 30*time.Second
}

func main() {
	binary := flag.String("penstock", "", "limit by penstock serve of this `program`, with a real Redis; default: by middleware, in memory")
	isFull := flag.Bool("full", false, "run for three minutes, twice")
	flag.Parse()
	if *isFull {
		surge.useFullTimes()
	}
	file := demo.File("surge/surge.yaml")
	alone, err := runAlone()
	if err != nil {
		log.Fatal(err)
	}
	runtime.GC() // so that the second run does not collect garbage of the first
	var limited *result
	if *binary != "" {
		limited, err = runServed(&surge, *binary, file)
	} else {
		limited, err = runBehind(file)
	}
	if err != nil {
		log.Fatal(err)
	}
	fmt.Print(table(alone, limited))
	if failures := check(alone, limited); len(failures) > 0 {
		for _, failure := range failures {
			fmt.Println("FAILED:", failure)
		}
		os.Exit(1)
	}
}

// runAlone runs the surge without limits.
func runAlone() (*result, error) {
	service := newBackend(surge.poolTimeout)
	server, target, err := serve(service)
	if err != nil {
		return nil, err
	}
	defer server.Close()
	return surge.run(transport(), target, service), nil
}

// runBehind runs the surge behind a proxy of this process, which has the limits.
func runBehind(file string) (*result, error) {
	service := newBackend(surge.poolTimeout)
	server, target, err := serve(service)
	if err != nil {
		return nil, err
	}
	defer server.Close()
	front, err := proxy(file, target, transport())
	if err != nil {
		return nil, err
	}
	gateway, target, err := serve(front)
	if err != nil {
		return nil, err
	}
	defer gateway.Close()
	return surge.run(transport(), target, service), nil
}

// proxy makes a reverse proxy with the limits of a policy.
func proxy(file string, target *url.URL, transport http.RoundTripper) (http.Handler, error) {
	p, err := policyfile.Load(file, policyfile.Options{Sections: []policyfile.Section{httplimit.DefaultConfig()}})
	if err != nil {
		return nil, err
	}
	controller, err := admission.New(memstore.New(memstore.Options{}), policy.Fixed(p.Rules), admission.Options{})
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
