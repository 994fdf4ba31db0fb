package adminapi

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/penstock/penstock/cmd/penstock/internal/console/denials"
	"github.com/penstock/penstock/cmd/penstock/internal/console/keylimits"
)

// A Denial is a request that this instance has denied.
type Denial struct {
	Time     time.Time `json:"time"`
	Rule     string    `json:"rule"`
	Limit    string    `json:"limit"`
	Identity string    `json:"identity,omitempty" doc:"the key, masked unless the token allows more"`
	Ref      string    `json:"ref,omitempty" doc:"a short name of the key, for /api/v1/key?ref="`
	Outcome  string    `json:"outcome" doc:"denied, denied_new_identity or failed_closed"`
	Source   string    `json:"source" doc:"who decided: store, deny_cache, lease, fallback, closed, or instance for new_identities"`
	RetryMS  int64     `json:"retry_after_ms" doc:"in milliseconds; 0: not known; -1: never"`
	TraceID  string    `json:"trace_id,omitempty"`
	Skipped  int64     `json:"skipped" doc:"denials before this one that were not sent, because there were too many"`
}

var denialsRoute = route{path: "denials", summary: "Denied requests of this instance as they happen, as server-sent events of the type denial: a sample of at most 50 a second.", parameters: []parameter{
	{name: "rule", doc: "only denials of this rule"},
	{name: "key", doc: "only denials of this key, such as key:abc; needs the token"},
	{name: "ref", doc: "instead of key: the ref of an offender"},
}, body: Denial{}}

const (
	deniedPerSecond = 50 // the most denials that each reader gets in a second
	deniedPerLimit  = 40 // the most of them that one limit may have
)

const keyParameter = "the parameter key (unlike ref)"

func (h *Handler) serveDenials(w http.ResponseWriter, req *http.Request) {
	values, err := denialsRoute.values(req.URL.RawQuery)
	if err != nil {
		failWith(w, err)
		return
	}
	v, _ := h.ViewerOf(req) // ServeHTTP has checked it
	if values.Get("key") != "" && !values.Has("ref") {
		if err := h.requireOperator(v, keyParameter); err != nil {
			failWith(w, err)
			return
		}
	}
	filter := denials.Filter{Rule: values.Get("rule")}
	if values.Has("key") || values.Has("ref") {
		if filter.Key, err = h.keyOf(req.Context(), values); err != nil {
			failWith(w, err)
			return
		}
	}
	place := h.readers.take(h.MaxReaders)
	defer h.readers.leave(place)
	reader := h.Denials.Join(filter, denials.Rate{PerSecond: deniedPerSecond, PerLimit: deniedPerLimit})
	if reader == nil { // readers that were displaced have not ended yet
		w.Header().Set("Retry-After", "5")
		fail(w, http.StatusServiceUnavailable, "too many readers follow the denials; try again in 5 s")
		return
	}
	defer h.Denials.Leave(reader)
	follow(w, req, place, reader.C, func(d denials.Denial) []byte {
		text, _ := json.Marshal(h.denialOf(v, &d)) // a Denial can always be encoded
		return fmt.Appendf(nil, "event: denial\ndata: %s\n\n", text)
	})
}

func (h *Handler) denialOf(v Viewer, d *denials.Denial) Denial {
	name := h.Name(d.Key)
	one := Denial{Time: d.Time.UTC(), Rule: d.Rule, Limit: d.Limit, Identity: h.identity(v, name), Ref: h.ref(name), Outcome: d.Outcome.String(), Source: d.DecidedBy(),
		RetryMS: keylimits.Milliseconds(d.RetryAfter), TraceID: d.TraceID, Skipped: d.Skipped}
	if h.shown(v) == ShowOff {
		one.Ref = ""
	}
	return one
}
