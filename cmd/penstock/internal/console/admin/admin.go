// Package admin serves health checks, metrics, the admin API and the dashboard to operators. By
// default it listens on the loopback address. Health checks and metrics show nothing of requests or
// keys.
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
	"sync/atomic"
	"time"
)

type State uint8

const (
	OK       State = iota
	Degraded       // requests are still decided, by the fallback; the service is ready
	Down           // the service is not ready
)

var stateNames = [...]string{"ok", "degraded", "down"}

func (s State) String() string {
	if int(s) >= len(stateNames) {
		return "unknown"
	}
	return stateNames[s]
}

// A Check is a part of readiness. Run returns its state, and a text for ?verbose; "" stands for the
// state's name.
type Check struct {
	Name string
	Run  func(ctx context.Context) (State, string)
}

type Options struct {
	Checks  []Check      // of readiness
	Metrics http.Handler // serves /metrics
	API     http.Handler // serves /api/v1/; nil: 404
	Pages   http.Handler // serves the dashboard at all other paths; nil: 404

	// Pprof wraps /debug/pprof in the access checks of the admin API. Default: no profiles are served.
	Pprof func(http.Handler) http.Handler

	// MaxRequests is how many requests of the API, the pages and profiles may be in flight at the same
	// time. MaxScrapes is the same for /metrics. Further requests get 503. So there are free
	// connections for probes, even if clients do not read their responses. Default: no bound.
	MaxRequests, MaxScrapes int
}

// New makes the handler of
//
//	/livez      200 while the process can answer; checks nothing that a restart would not fix
//	/readyz     200 "ok" or "degraded: store"; 503 "down: …". With ?verbose, a line for each check
//	/healthz    the same as /readyz
//	/metrics    for Prometheus
//	/api/v1/    the admin API
//	/           the dashboard
//	/debug/pprof/ profiles, without the command line, which may contain secrets
func New(o Options) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", probe(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ok\n") }))
	mux.HandleFunc("GET /readyz", probe(o.ready))
	mux.HandleFunc("GET /healthz", probe(o.ready))
	if o.Metrics != nil {
		mux.Handle("GET /metrics", limitRequests(o.MaxScrapes)(probe(withShortWrites(o.Metrics))))
	}
	limited := limitRequests(o.MaxRequests)
	if o.API != nil {
		mux.Handle("/api/v1/", limited(o.API))
	}
	if o.Pages != nil {
		mux.Handle("/", limited(o.Pages))
	}
	if o.Pprof != nil {
		profiles := http.NewServeMux()
		profiles.HandleFunc("GET /debug/pprof/", pprof.Index)
		profiles.HandleFunc("GET /debug/pprof/cmdline", http.NotFound)
		profiles.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
		profiles.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
		profiles.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
		mux.Handle("/debug/pprof/", limited(o.Pprof(withLongWrites(profiles))))
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header.Set("Cache-Control", "no-store")
		header.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
		header.Set("Content-Type", "text/plain; charset=utf-8")
		header.Set("Referrer-Policy", "no-referrer")
		header.Set("X-Content-Type-Options", "nosniff")
		if mayBeRebound(r) {
			http.Error(w, "use the IP address, or localhost, as the host name", http.StatusMisdirectedRequest)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// probe closes the connection after each response of a probe or scrape. Otherwise a client could
// send many requests on one connection, fill the connection's buffer and keep it open.
func probe(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Connection", "close")
		next(w, r)
	}
}

// withShortWrites bounds the time of a response, so that a client that reads nothing does not keep
// one of the few places for scrapes.
func withShortWrites(next http.Handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(maxScrape))
		next.ServeHTTP(w, r)
	}
}

const maxScrape = 5 * time.Second

// limitRequests returns middleware that lets at most max requests be in flight at the same time.
// All handlers that it wraps share this bound. 0 means no bound.
func limitRequests(max int) func(http.Handler) http.Handler {
	var inFlight atomic.Int64
	return func(next http.Handler) http.Handler {
		if max == 0 {
			return next
		}
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			defer inFlight.Add(-1)
			if inFlight.Add(1) > int64(max) {
				w.Header().Set("Connection", "close")
				w.Header().Set("Retry-After", "1")
				http.Error(w, "too many requests are in flight at the admin address; retry later", http.StatusServiceUnavailable)
				return
			}
			next.ServeHTTP(w, r)
		})
	}
}

const maxProfile = 10 * time.Minute

// withLongWrites raises the write timeout for profiles to maxProfile. pprof rejects a profile that
// takes longer than the write timeout of the server that it finds in the context.
func withLongWrites(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(maxProfile))
		server := &http.Server{WriteTimeout: maxProfile}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), http.ServerContextKey, server)))
	})
}

func (o Options) ready(w http.ResponseWriter, r *http.Request) {
	worst, names := OK, []string(nil)
	var lines strings.Builder
	for _, check := range o.Checks {
		state, text := check.Run(r.Context())
		fmt.Fprintf(&lines, "%s %s\n", check.Name, cmp.Or(text, stateNames[state]))
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

// mayBeRebound detects DNS rebinding: a browser reached a loopback address under a foreign host
// name. Browsers always send a Host. Health checks may send none or any: their responses are no
// secret.
func mayBeRebound(r *http.Request) bool {
	switch r.URL.Path {
	case "/livez", "/readyz", "/healthz":
		return false
	}
	if r.Host == "" {
		return false
	}
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
