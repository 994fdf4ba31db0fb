// Command surge sends 2,000 riders to a service that can answer 150 requests a second: first alone,
// then behind Penstock. It prints what became of them, and fails if Penstock did not help.
package main

import (
	"fmt"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"runtime"
	"time"

	"github.com/penstock/penstock/examples/internal/demo"
	"github.com/penstock/penstock/httplimit"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/policy"
)

// A surge of three minutes in a quarter of one: all come within two seconds, not ten, and the
// patience of riders and of the service's pool is a third of what is usual.
var surge = scenario{
	riders:  2000,
	arrive:  2 * time.Second,
	last:    14 * time.Second,
	least:   100 * time.Millisecond,
	most:    300 * time.Millisecond,
	timeout: 13 * time.Second,
	endpoints: []endpoint{
		{5, http.MethodPost, "/api/rides/request"},
		{2, http.MethodGet, "/api/fares/estimate"},
		{1, http.MethodGet, "/api/drivers/nearby"},
	},
}

func main() {
	alone, err := runAlone()
	if err != nil {
		log.Fatal(err)
	}
	runtime.GC() // what the first run leaves behind is not to be paid by the second
	limited, err := runBehind(demo.File("surge/surge.yaml"))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Print(table(alone, limited))
	if wrong := check(alone, limited); len(wrong) > 0 {
		for _, what := range wrong {
			fmt.Println("not as it should be:", what)
		}
		os.Exit(1)
	}
}

func runAlone() (*result, error) {
	service := newBackend()
	server, at, err := serve(service)
	if err != nil {
		return nil, err
	}
	defer server.Close()
	return surge.run(transport(), at, service), nil
}

func runBehind(file string) (*result, error) {
	service := newBackend()
	server, at, err := serve(service)
	if err != nil {
		return nil, err
	}
	defer server.Close()
	front, err := proxy(file, at, transport())
	if err != nil {
		return nil, err
	}
	gateway, at, err := serve(front)
	if err != nil {
		return nil, err
	}
	defer gateway.Close()
	return surge.run(transport(), at, service), nil
}

// proxy is a reverse proxy behind the limits of a policy.
func proxy(file string, to *url.URL, by http.RoundTripper) (http.Handler, error) {
	rules, err := policy.Load(file)
	if err != nil {
		return nil, err
	}
	gate, err := httplimit.New(httplimit.Options{
		Store: memstore.New(memstore.Options{}),
		Rules: func() *policy.Rules { return rules },
	})
	if err != nil {
		return nil, err
	}
	return gate.Middleware(&httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(to) },
		Transport: by,
	}), nil
}

// serve serves on a free port of this machine.
func serve(handler http.Handler) (*http.Server, *url.URL, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	go server.Serve(listener)
	return server, &url.URL{Scheme: "http", Host: listener.Addr().String()}, nil
}

// transport keeps a connection for every rider.
func transport() *http.Transport {
	return &http.Transport{MaxIdleConnsPerHost: surge.riders, DisableCompression: true}
}
