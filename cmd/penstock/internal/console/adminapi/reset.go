package adminapi

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"net/url"

	"github.com/penstock/penstock/cmd/penstock/internal/console/audit"
	"github.com/penstock/penstock/cmd/penstock/internal/console/keylimits"
	"github.com/penstock/penstock/cmd/penstock/internal/text/redact"
)

// A ResetRequest names the key and the limits to reset.
type ResetRequest struct {
	Key    string `json:"key,omitempty" doc:"as explain writes it, such as key:abc"`
	Ref    string `json:"ref,omitempty" doc:"instead of key: the ref of an offender"`
	Rule   string `json:"rule,omitempty" doc:"only the limits of this rule; default: all limits that count under such a key"`
	Limit  string `json:"limit,omitempty" doc:"only this limit of the rule; in_flight limits are reset only by their names"`
	Reason string `json:"reason" doc:"for the audit, 1 to 200 letters"`
}

type Audit = audit.Line

func newAudit(req *http.Request) Audit {
	return audit.New("reset", audit.Actor{Kind: audit.API, Address: req.RemoteAddr})
}

// record sets the result in the audit line of a write, and passes the line to Options.Audit.
func (h *Handler) record(a *Audit, err error) {
	hasStoreFailed := err != nil && StatusOf(err) == http.StatusServiceUnavailable
	a.End(err, !hasStoreFailed)
	h.Audit(*a)
}

const maxBody = 16 << 10 // bytes

func (h *Handler) serveReset(w http.ResponseWriter, req *http.Request) {
	a := newAudit(req)
	ctx, cancel := context.WithTimeout(req.Context(), timeout)
	defer cancel()
	body, err := h.receiveReset(ctx, w, req, &a)
	h.record(&a, err)
	if err != nil {
		failWith(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(body)
}

func (h *Handler) receiveReset(ctx context.Context, w http.ResponseWriter, req *http.Request, a *Audit) (*keylimits.Reset, error) {
	v, err := h.ViewerOf(req)
	if err == nil {
		err = h.requireOperator(v, "a reset")
	}
	if err != nil {
		return nil, err
	}
	wanted, err := readReset(w, req)
	if err != nil {
		return nil, err
	}
	return h.reset(ctx, wanted, a)
}

// requireOperator returns an error if a viewer is not an operator. In the error, what names the
// action. Only operators may write, and name a key. Otherwise anyone could guess keys, and compare
// their numbers with those of masked keys.
func (h *Handler) requireOperator(v Viewer, what string) error {
	switch {
	case v.isOperator:
		return nil
	case len(h.Token) == 0:
		return refuse(http.StatusForbidden, "%s needs the operator token, and this instance has no operator_token; set operator_token in its settings, and restart it", what)
	}
	h.AuthFailed(tokenIsMissing) // ViewerOf has refused a wrong token
	return refuse(http.StatusUnauthorized, "%s needs the operator token at every address; send it as Authorization: Bearer", what)
}

// reset resets a key for an operator, and completes the audit line a.
func (h *Handler) reset(ctx context.Context, wanted ResetRequest, a *Audit) (*keylimits.Reset, error) {
	a.Reason = wanted.Reason
	key, err := h.keyOf(ctx, url.Values{"key": {wanted.Key}, "ref": {wanted.Ref}})
	if err != nil {
		return nil, err
	}
	a.Ref, a.Key = h.ref(h.Name(key)), redact.Mask(key)
	limits, err := h.limitsToReset(key, wanted)
	if err != nil {
		return nil, err
	}
	before, err := h.Reader.ReadStates(ctx, limits)
	if err != nil {
		return nil, h.storeFailed(ctx, err)
	}
	if intent := a.Intent(before); len(intent.Limits) > 0 {
		if err := h.AuditIntent(intent); err != nil {
			return nil, refuse(http.StatusInternalServerError, "the audit file cannot be written, so nothing was reset: %v", err)
		}
	}
	done, err := h.Reader.Clear(ctx, h.Store, before, a.Add)
	if err != nil {
		return nil, h.storeFailed(ctx, err)
	}
	return done, nil
}

func readReset(w http.ResponseWriter, req *http.Request) (wanted ResetRequest, err error) {
	if kind, _, err := mime.ParseMediaType(req.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return wanted, refuse(http.StatusUnsupportedMediaType, "send the body as Content-Type: application/json")
	}
	decoder := json.NewDecoder(http.MaxBytesReader(w, req.Body, maxBody))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&wanted); err != nil || !isAtEnd(decoder) {
		return wanted, refuse(http.StatusBadRequest, `the body is not of the form {"key": "key:abc", "reason": "why"}`)
	}
	return wanted, wanted.check()
}

// isAtEnd reports whether nothing but space follows what was decoded.
func isAtEnd(decoder *json.Decoder) bool {
	_, err := decoder.Token()
	return errors.Is(err, io.EOF)
}

func (wanted *ResetRequest) check() error {
	reason := keylimits.CheckReason(wanted.Reason)
	switch {
	case reason != nil:
		return refuse(http.StatusBadRequest, "%v", reason)
	case wanted.Limit != "" && wanted.Rule == "":
		return refuse(http.StatusBadRequest, "limit is given without its rule")
	case len(wanted.Key) > maxValue:
		return refuse(http.StatusBadRequest, "key is longer than %d bytes", maxValue)
	}
	return nil
}

// limitsToReset returns the limits that a request names. It fails if there are none or too many.
func (h *Handler) limitsToReset(key string, wanted ResetRequest) ([]keylimits.Limit, error) {
	all, skipped := h.limitsOf(key, wanted.Rule)
	if skipped > 0 {
		return nil, refuse(http.StatusConflict, "there are more than %d limits of such a key; name a rule", keylimits.MaxLimits)
	}
	limits := keylimits.Resettable(all, wanted.Limit)
	if len(limits) == 0 {
		return nil, refuse(http.StatusNotFound, "no such limit counts under such a key; %srules lists them", Prefix)
	}
	return limits, nil
}

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
