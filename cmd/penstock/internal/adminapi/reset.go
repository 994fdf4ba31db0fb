package adminapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"unicode"

	"github.com/penstock/penstock"
)

// A ResetRequest says what to forget.
type ResetRequest struct {
	Key    string `json:"key,omitempty" doc:"as explain writes it, such as key:abc"`
	Ref    string `json:"ref,omitempty" doc:"instead of key: the ref of an offender"`
	Rule   string `json:"rule,omitempty" doc:"only the limits of this rule; default: all limits that count under such a key"`
	Limit  string `json:"limit,omitempty" doc:"only this limit of the rule; in_flight limits are reset only by their names"`
	Reason string `json:"reason" doc:"for the audit, 1 to 200 letters"`
}

// A Reset is what has been forgotten.
type Reset struct {
	Reset  []string   `json:"reset" doc:"limits, as RULE.LIMIT, that counted something before"`
	Before []KeyLimit `json:"before"`
	After  []KeyLimit `json:"after"`
}

// An Audit describes a write. It has no identity and no secret.
type Audit struct {
	Action  string   // reset
	Actor   string   // the address of the client
	Ref     string   // of the key
	Masked  string   // the key, so that nobody can read it
	Limits  []string // as RULE.LIMIT USED->USED
	Reason  string
	Problem string // why the write was refused or failed; "" if it succeeded
}

const (
	maxBody   = 16 << 10 // bytes
	maxReason = 200      // letters
)

// serveReset answers POST /api/v1/key/reset.
func (h *Handler) serveReset(w http.ResponseWriter, q *http.Request) {
	a := Audit{Action: "reset", Actor: q.RemoteAddr}
	ctx, cancel := context.WithTimeout(q.Context(), timeout)
	defer cancel()
	body, err := h.reset(ctx, w, q, &a)
	if err != nil {
		a.Problem = err.Error()
	}
	h.Audit(a)
	if err != nil {
		failWith(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(body)
}

func (h *Handler) reset(ctx context.Context, w http.ResponseWriter, q *http.Request, a *Audit) (*Reset, error) {
	v, refused := h.viewerOf(q)
	switch {
	case refused != nil:
		return nil, *refused
	case !v.isOperator && len(h.Token) == 0:
		return nil, refuse(http.StatusForbidden, "nobody may write, because this service has no operator_token; set it")
	case !v.isOperator:
		return nil, refuse(http.StatusUnauthorized, "send the operator token as Authorization: Bearer; writes need it at every address")
	}
	asked, err := readReset(w, q)
	if err != nil {
		return nil, err
	}
	a.Reason = asked.Reason
	key, err := h.keyOf(ctx, url.Values{"key": {asked.Key}, "ref": {asked.Ref}})
	if err != nil {
		return nil, err
	}
	name := h.Name(key)
	a.Ref, a.Masked = h.ref(name), mask(key)
	limits, err := h.toReset(key, asked)
	if err != nil {
		return nil, err
	}
	done := &Reset{Reset: []string{}}
	if done.Before, err = h.peek(ctx, key, limits); err != nil {
		return nil, err
	}
	for _, l := range limits { // one at a time: a missing right must not hide what was reset
		charge := []penstock.Charge{{Key: key, Plan: l.plan, Mode: penstock.Reset}}
		d, err := h.Store.Decide(ctx, charge)
		if err == nil && !isOfStore(d.Source) {
			err = penstock.ErrUnavailable
		}
		if err != nil {
			return nil, storeFailed(err)
		}
	}
	if done.After, err = h.peek(ctx, key, limits); err != nil {
		return nil, err
	}
	for i, l := range done.Before {
		if l.Used > 0 || l.Denies {
			done.Reset = append(done.Reset, l.Rule+"."+l.Limit)
			a.Limits = append(a.Limits, fmt.Sprintf("%s.%s %d->%d", l.Rule, l.Limit, l.Used, done.After[i].Used))
		}
	}
	return done, nil
}

// readReset reads and checks the body of a request.
func readReset(w http.ResponseWriter, q *http.Request) (asked ResetRequest, err error) {
	if kind, _, err := mime.ParseMediaType(q.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return asked, refuse(http.StatusUnsupportedMediaType, "send the body as Content-Type: application/json")
	}
	decoder := json.NewDecoder(http.MaxBytesReader(w, q.Body, maxBody))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&asked); err != nil || decoder.More() {
		return asked, refuse(http.StatusBadRequest, `the body is not of the form {"key": "key:abc", "reason": "why"}`)
	}
	letters := []rune(asked.Reason)
	switch isHidden := func(r rune) bool { return !unicode.IsPrint(r) }; {
	case strings.TrimSpace(asked.Reason) == "" || len(letters) > maxReason || strings.ContainsFunc(asked.Reason, isHidden):
		return asked, refuse(http.StatusBadRequest, "reason must have 1 to %d letters; it is for the audit", maxReason)
	case asked.Limit != "" && asked.Rule == "":
		return asked, refuse(http.StatusBadRequest, "limit is given without its rule")
	case len(asked.Key) > maxValue:
		return asked, refuse(http.StatusBadRequest, "key is longer than %d bytes", maxValue)
	}
	return asked, nil
}

// toReset returns the limits to reset, each once: all tiers have one state.
func (h *Handler) toReset(key string, asked ResetRequest) (limits []keyLimit, err error) {
	all, skipped := h.limitsOf(h.Rules(), key, asked.Rule)
	if skipped > 0 {
		return nil, refuse(http.StatusConflict, "there are more than %d limits of such a key; name a rule", maxKeyLimits)
	}
	seen := make(map[[2]uint64]bool)
	for _, l := range all {
		isNamed := l.limit.Name == asked.Limit
		if asked.Limit != "" && !isNamed || !isNamed && l.plan.Algorithm().NeedsHolder() || seen[l.plan.ID()] {
			continue
		}
		seen[l.plan.ID()] = true
		limits = append(limits, l)
	}
	if len(limits) == 0 {
		return nil, refuse(http.StatusNotFound, "no such limit counts under such a key; %srules lists them", Prefix)
	}
	return limits, nil
}

// peek returns what limits know of a key. It fails unless the store answers.
func (h *Handler) peek(ctx context.Context, key string, limits []keyLimit) (found []KeyLimit, err error) {
	found = []KeyLimit{}
	for _, l := range limits {
		d, err := h.Store.Decide(ctx, []penstock.Charge{{Key: key, Plan: l.plan, Cost: 1, Mode: penstock.Peek}})
		if err == nil && !isOfStore(d.Source) {
			err = penstock.ErrUnavailable
		}
		if err != nil {
			return nil, storeFailed(err)
		}
		found = append(found, l.status(d.Status(0)))
	}
	return found, nil
}

// isOfStore tells whether a decision is what the store says, now or a moment ago.
func isOfStore(s penstock.Source) bool {
	return s == penstock.FromStore || s == penstock.FromDenyCache || s == penstock.FromLease
}

// failWith answers with an error.
func failWith(w http.ResponseWriter, err error) {
	r, ok := errors.AsType[refusal](err)
	if !ok {
		r = refusal{http.StatusInternalServerError, err.Error()}
	}
	if r.status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", `Bearer realm="penstock"`)
	}
	fail(w, r.status, r.text)
}
