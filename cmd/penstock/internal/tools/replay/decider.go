package replay

import (
	"context"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/cmd/penstock/internal/tools/accesslog"
	"github.com/penstock/penstock/cmd/penstock/internal/tools/nowait"
	"github.com/penstock/penstock/cmd/penstock/internal/tools/simclock"
	"github.com/penstock/penstock/httplimit"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/policy"
)

// A decider decides the requests of a log as an instance would have, by the clock of the log.
type decider struct {
	gate   *httplimit.Gate
	clock  *simclock.Clock // that of the log; ends of requests and retries are scheduled
	answer response
	mu     sync.Mutex // needed because shadows are decided concurrently
	seen   observation
}

// An observation is what the rules decided about one request.
type observation struct {
	decision
	retryAfter time.Duration
	wait       time.Duration
	shadows    []decision
}

// A decision is that of the enforced limits, or of a shadow or candidate.
type decision struct {
	outcome          admission.Outcome
	rule, limit, key string // of the limit that denies for longest, or else has the least left
}

func newDecider(rules *policy.Rules) (*decider, error) {
	d := &decider{answer: response{header: make(http.Header)}, clock: simclock.New(time.Time{})}
	store := memstore.New(memstore.Options{Now: d.clock.Now, Locks: 1})
	noteWait := func(_ []penstock.Charge, waited *penstock.Decision) {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.seen.wait = max(d.seen.wait, waited.Wait())
	}
	controller, err := admission.New(nowait.Wrap(store, noteWait), rules, admission.Options{Observe: d.observe, Now: d.clock.Now})
	if err != nil {
		return nil, err
	}
	d.gate, err = httplimit.New(controller, httplimit.Options{})
	return d, err
}

// observe records the outcome of a request or of a shadow.
func (d *decider) observe(e *admission.Event) {
	d.mu.Lock()
	defer d.mu.Unlock()
	one := decision{e.Outcome, strings.Clone(e.Rule), strings.Clone(e.Limit), strings.Clone(e.Key)}
	switch e.Outcome {
	case admission.ShadowAllowed, admission.ShadowDenied:
		d.seen.shadows = append(d.seen.shadows, one)
	default:
		d.seen.decision = one
		if e.Decision != nil && e.Decision.Len() > 0 {
			d.seen.retryAfter = e.Decision.RetryAfter()
		}
	}
}

func (d *decider) send(r *http.Request, e *accesslog.Entry) observation {
	d.seen = observation{}
	clear(d.answer.header)
	a := d.gate.Admit(&d.answer, r)
	if a != nil {
		done := func() { a.Done(max(e.Status, http.StatusOK)) }
		if end := d.seen.wait + e.Duration; end > 0 {
			d.clock.Schedule(d.clock.Now().Add(end), done)
		} else {
			done()
		}
	}
	return d.seen
}

// A response discards what a gate answers.
type response struct{ header http.Header }

func (r *response) Header() http.Header         { return r.header }
func (r *response) Write(p []byte) (int, error) { return len(p), nil }
func (r *response) WriteHeader(int)             {}

// unknownAddress is that of requests whose log has none: the dummy address of RFC 7600.
var unknownAddress = netip.MustParseAddr("192.0.0.8")

// newRequest makes the request that a server would have received. It returns nil if the target is
// no path or URL.
func newRequest(e *accesslog.Entry) *http.Request {
	u, err := url.ParseRequestURI(e.Target)
	if err != nil {
		return nil
	}
	host := e.Host
	if u.Host != "" {
		host = u.Host
	}
	u.Scheme, u.Host = "", ""
	address := e.Address
	if !address.IsValid() {
		address = unknownAddress
	}
	const anyPort = 1024
	r := &http.Request{Method: e.Method, URL: u, Host: host, Header: make(http.Header, len(e.Headers)), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		RequestURI: e.Target, RemoteAddr: netip.AddrPortFrom(address, anyPort).String(), Body: http.NoBody}
	for _, h := range e.Headers {
		r.Header.Add(h.Name, h.Value)
	}
	return r.WithContext(context.Background())
}
