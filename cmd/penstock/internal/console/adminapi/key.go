package adminapi

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/cmd/penstock/internal/console/activity"
	"github.com/penstock/penstock/cmd/penstock/internal/console/keylimits"
	"github.com/penstock/penstock/cmd/penstock/internal/text/redact"
	"github.com/penstock/penstock/internal/syntax"
)

func (h *Handler) makeKey(ctx context.Context, v Viewer, q url.Values) (any, error) {
	key, err := h.keyOf(ctx, q)
	if err != nil {
		return nil, err
	}
	if q.Get("key") != "" {
		if err := h.requireOperator(v, keyParameter); err != nil {
			return nil, err
		}
	}
	limits, skipped := h.limitsOf(key, q.Get("rule"))
	newIdentities := keylimits.NewIdentities(h.Policy.Rules(), key, q.Get("rule"))
	if len(limits) == 0 && len(newIdentities) == 0 {
		return nil, h.notCounted(key, q)
	}
	name := h.Name(key)
	found := Key{Identity: key, Ref: h.ref(name), Stored: name, Limits: []keylimits.Limit{}, Unread: newIdentities, Skipped: skipped}
	isHidden := q.Has("ref") && h.shown(v) != ShowFull
	if q.Has("ref") {
		found.Identity = h.identity(v, name)
	}
	if isHidden {
		found.Stored = "" // without key_hash_secret, the name contains the key
	}
	all := limits
	if key != syntax.GlobalKey {
		global, skipped := keylimits.Globals(h.Policy.Rules(), limits)
		all, found.Skipped = slices.Concat(limits, global), found.Skipped+skipped
	}
	source, err := h.Reader.Read(ctx, all)
	if err != nil {
		return nil, h.storeFailed(ctx, err)
	}
	if corrupt := keylimits.Corrupt(all); corrupt != nil && !isHidden {
		found.Repair = h.Reader.Repair(corrupt)
	}
	found.Source, found.Results = source.String(), keylimits.Results(all)
	found.DeniedBy = keylimits.DeniedBy(found.Results)
	found.List = keylimits.ListOf(h.Policy.Rules(), limits)
	found.UnderOtherKeys = keylimits.UnderOtherKeys(h.Policy.Rules(), key, limits)
	for i, l := range all {
		if isHidden {
			l.Stored = ""
		}
		isShown := l.IsInUse() || l.IsUnknown || q.Get("all") == "true"
		isGlobal := i >= len(limits) // all begins with the limits of the key
		switch {
		case isShown && isGlobal:
			found.Global = append(found.Global, l)
		case isShown:
			found.Limits = append(found.Limits, l)
		}
	}
	return found, nil
}

// notCounted returns the refusal for a key that no limit counts. A key that was named by its ref
// may be hidden from the viewer, so it is not in the text.
func (h *Handler) notCounted(key string, q url.Values) error {
	rule := q.Get("rule")
	switch {
	case rule != "" && h.Policy.Rules().Rule(rule) == nil:
		return refuse(http.StatusNotFound, "%v; %srules lists the rules", h.Policy.Rules().NoRule(rule), Prefix)
	case q.Has("ref"):
		return refuse(http.StatusNotFound, "no limit counts under this key any more; %srules lists the limits", Prefix)
	}
	return refuse(http.StatusNotFound, "%s", keylimits.NotCounted(h.Policy.Rules(), key, rule))
}

// limitsOf returns the limits of the policy and of Envoy's files that count under a key.
func (h *Handler) limitsOf(key, rule string) (limits []keylimits.Limit, skipped int) {
	limits, skipped = keylimits.Find(h.Policy.Rules(), key, rule)
	return append(limits, keylimits.Envoy(h.EnvoyLimits(key), rule)...), skipped
}

// storeFailed returns the refusal for an error of the store. It contains only the reason, because
// the text of an error may contain a key. If the instance has decided without its store, the error
// has no reason: then it is that of the latest failed call.
func (h *Handler) storeFailed(ctx context.Context, err error) error {
	if keylimits.IsCorrupt(err) {
		return refuse(http.StatusConflict, "the key has a value in Redis that Penstock did not write, so it cannot be reset; delete the value in Redis: penstock status KEY --store URL --config FILE prints the command")
	}
	if e := penstock.AsStoreError(err); e != nil {
		reason := e.Reason.String()
		if e.Reason == penstock.ReasonUnknown {
			reason = cmp.Or(h.StoreInfo(ctx).Reason, reason)
		}
		return refuse(http.StatusServiceUnavailable, "the store gives no answer: %s", reason)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return refuse(http.StatusServiceUnavailable, "the store gives no answer in time")
	}
	return refuse(http.StatusBadRequest, "the store rejects this key")
}

// keyOf returns the key that a request names by key or by ref, as the policy counts it.
func (h *Handler) keyOf(ctx context.Context, q url.Values) (string, error) {
	switch key, ref := q.Get("key"), q.Get("ref"); {
	case ref == "" && redact.IsMasked(key):
		return "", refuse(http.StatusBadRequest, "this key is masked, so it names no client; use its ref, as in ?ref=REF; offenders, denials and the log have it beside each masked key")
	case key != "" && ref == "":
		return keylimits.Normalize(h.Policy.Rules(), key), nil
	case key != "" || ref == "":
		return "", refuse(http.StatusBadRequest, "name one key by key or by ref, such as ?key=key:abc")
	default:
		return h.keyOfRef(ctx, ref)
	}
}

// keyOfRef finds the key that a ref stands for, among the offenders. The key of all clients
// together is never an offender.
func (h *Handler) keyOfRef(ctx context.Context, ref string) (string, error) {
	if ref == h.ref(h.Name(syntax.GlobalKey)) {
		return syntax.GlobalKey, nil
	}
	parts := slices.Clone(h.Fleet(ctx).Activity)
	for _, w := range activity.Windows() {
		parts = append(parts, h.Recorder.Activity(w))
	}
	for _, a := range parts {
		for _, top := range a.Tops {
			for _, item := range top.Items {
				if h.ref(item.Name) != ref {
					continue
				}
				if key, ok := h.Key(item.Name); ok {
					return key, nil
				}
				return "", refuse(http.StatusConflict, "the store has only the hash of this key; name the key itself")
			}
		}
	}
	return "", refuse(http.StatusNotFound, "no offender of the last hour has this ref; it may belong to another instance")
}

// ref returns the short name that stands for a masked key. Equal keys have equal refs.
func (h *Handler) ref(name string) string { return h.masks.Ref(name) }

// identity returns the part that a viewer may see of a key. name is the key's name in the store.
func (h *Handler) identity(v Viewer, name string) string { return h.masks.Of(v.isOperator, name) }

// shown returns ShowOff, ShowMasked or ShowFull for a viewer.
func (h *Handler) shown(v Viewer) string { return h.masks.Shown(v.isOperator) }
