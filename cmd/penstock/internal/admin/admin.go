// Package admin answers those who run the gate: is it alive, is it ready, what has it counted. It
// is for the machine's own address, and shows nothing of requests or keys.
package admin

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"strings"
)

// A State is what a check finds.
type State uint8

const (
	OK       State = iota
	Degraded       // requests are still decided, not as well as they should be; the gate is ready
	Down           // the gate is not ready
)

var stateNames = [...]string{"ok", "degraded", "down"}

// A Check is a part of readiness. Run says how it is, and for ?verbose in which words; default: the
// state's name.
type Check struct {
	Name string
	Run  func(ctx context.Context) (State, string)
}

// Options of a handler.
type Options struct {
	Checks  []Check      // what readiness depends on
	Metrics http.Handler // serves /metrics
	Pprof   bool         // serve /debug/pprof
}

// New makes the handler of
//
//	/livez      200 while the process can answer; a restart would mend nothing else
//	/readyz     200 "ok" or "degraded: store"; 503 "down: …". With ?verbose, a line for each check
//	/healthz    the same as /readyz
//	/metrics    for Prometheus
func New(o Options) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ok\n") })
	mux.HandleFunc("GET /readyz", o.ready)
	mux.HandleFunc("GET /healthz", o.ready)
	if o.Metrics != nil {
		mux.Handle("GET /metrics", o.Metrics)
	}
	if o.Pprof {
		mux.HandleFunc("GET /debug/pprof/", pprof.Index)
		mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header.Set("Cache-Control", "no-store")
		header.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
		header.Set("Content-Type", "text/plain; charset=utf-8")
		header.Set("Referrer-Policy", "no-referrer")
		header.Set("X-Content-Type-Options", "nosniff")
		if rebound(r) {
			http.Error(w, "ask for this address by its number, or as localhost", http.StatusMisdirectedRequest)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

func (o Options) ready(w http.ResponseWriter, r *http.Request) {
	worst, names := OK, []string(nil)
	var lines strings.Builder
	for _, check := range o.Checks {
		state, words := check.Run(r.Context())
		fmt.Fprintf(&lines, "%s %s\n", check.Name, cmp.Or(words, stateNames[state]))
		if state > worst {
			worst, names = state, nil
		}
		if state == worst && worst != OK {
			names = append(names, check.Name)
		}
	}
	if worst == Down {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	if r.URL.Query().Has("verbose") {
		io.WriteString(w, lines.String())
	}
	io.WriteString(w, stateNames[worst])
	if names != nil {
		io.WriteString(w, ": "+strings.Join(names, ", "))
	}
	io.WriteString(w, "\n")
}

// rebound tells whether a browser may have been led here: to a loopback address, under a name that
// somebody else gave it.
func rebound(r *http.Request) bool {
	local, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	if !ok || !local.IP.IsLoopback() {
		return false
	}
	host, _, err := net.SplitHostPort(r.Host)
	if err != nil {
		host = r.Host
	}
	_, err = netip.ParseAddr(strings.Trim(host, "[]"))
	return err != nil && host != "localhost" && !strings.HasSuffix(host, ".localhost")
}
