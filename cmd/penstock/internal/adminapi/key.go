package adminapi

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/cmd/penstock/internal/activity"
	"github.com/penstock/penstock/policy"
	"github.com/penstock/penstock/policy/describe"
)

// maxKeyLimits is how many limits of a key are asked at most. They take four calls of the store.
const maxKeyLimits = 4 * penstock.MaxCharges

func (h *Handler) makeKey(ctx context.Context, v viewer, q url.Values) (any, error) {
	key, err := h.keyOf(ctx, q)
	if err != nil {
		return nil, err
	}
	rules := h.Rules()
	asked, skipped := h.limitsOf(rules, key, q.Get("rule"))
	if q.Has("rule") && len(asked) == 0 {
		return nil, refuse(http.StatusNotFound, "no limit of a rule of this name counts under such a key; %srules lists them", Prefix)
	}
	name := h.Name(key)
	found := Key{Identity: key, Ref: h.ref(name), Stored: name, DeniedBy: []string{}, Limits: []KeyLimit{}, Skipped: skipped}
	if q.Has("ref") {
		found.Identity = h.identity(v, name)
		if h.shown(v) != ShowFull {
			found.Stored = "" // without a secret, it has the key
		}
	}
	source := penstock.FromStore
	for len(asked) > 0 {
		batch := firstBatch(asked)
		asked = asked[len(batch):]
		charges := make([]penstock.Charge, len(batch))
		for i, a := range batch {
			charges[i] = penstock.Charge{Key: key, Plan: a.plan, Cost: 1, Mode: penstock.Peek}
		}
		d, err := h.Store.Decide(ctx, charges)
		if err != nil {
			return nil, storeFailed(err)
		}
		source = max(source, d.Source)
		for i, a := range batch {
			one := a.status(d.Status(i))
			if one.Denies && one.Kind == kindEnforced {
				found.DeniedBy = append(found.DeniedBy, one.Rule+"."+one.Limit)
			}
			if one.Used > 0 || one.Denies || q.Get("all") == "true" {
				found.Limits = append(found.Limits, one)
			}
		}
	}
	found.Source = source.String()
	return found, nil
}

// storeFailed is the refusal while the store gives no answer. It does not say more than the reason:
// the text of an error may have a key.
func storeFailed(err error) error {
	if e := penstock.AsStoreError(err); e != nil {
		return refuse(http.StatusServiceUnavailable, "the store gives no answer: %s", e.Reason)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return refuse(http.StatusServiceUnavailable, "the store gives no answer in time")
	}
	return refuse(http.StatusBadRequest, "the store cannot be asked about such a key")
}

// keyOf returns the key that a request asks about.
func (h *Handler) keyOf(ctx context.Context, q url.Values) (string, error) {
	switch key, ref := q.Get("key"), q.Get("ref"); {
	case key != "" && ref == "":
		return key, nil
	case key != "" || ref == "":
		return "", refuse(http.StatusBadRequest, "name one key by key or by ref, such as ?key=key:abc")
	default:
		return h.keyOfRef(ctx, ref)
	}
}

// keyOfRef finds the key that a ref stands for, among the offenders.
func (h *Handler) keyOfRef(ctx context.Context, ref string) (string, error) {
	parts := h.Fleet(ctx).Activity
	for _, w := range activity.Windows() {
		parts = append(parts[:len(parts):len(parts)], h.Recorder.Activity(w))
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
				return "", refuse(http.StatusConflict, "the store has only the hash of this key; ask by the key itself")
			}
		}
	}
	return "", refuse(http.StatusNotFound, "no offender of the last hour has this ref; it may be of another instance")
}

// A keyLimit is a limit to ask about a key.
type keyLimit struct {
	limit *policy.Limit
	kind  string
	index int // of the tier
	tier  string
	plan  *penstock.Plan
}

// firstBatch returns the first limits of one tier: a batch must not have two of one state.
func firstBatch(asked []keyLimit) []keyLimit {
	n := 1
	for n < min(len(asked), penstock.MaxCharges) && asked[n].index == asked[0].index {
		n++
	}
	return asked[:n]
}

// limitsOf returns the limits that count under such a key, one tier after the other.
func (h *Handler) limitsOf(rules *policy.Rules, key, rule string) (asked []keyLimit, skipped int) {
	tiers := rules.Spec().Tiers
	for tier := range max(len(tiers), 1) {
		for _, r := range rules.Rules() {
			if rule != "" && r.Name != rule {
				continue
			}
			for _, l := range r.Limits {
				for _, one := range []struct {
					*policy.Limit
					kind string
				}{{l, kindOf(l)}, {l.Candidate, kindCandidate}} {
					if one.Limit == nil || tier >= len(one.Variants) || !l.Key.CanBe(key) {
						continue
					}
					if len(asked) == maxKeyLimits {
						skipped++
						continue
					}
					k := keyLimit{one.Limit, one.kind, tier, "", one.Variants[tier]}
					if len(one.Variants) > 1 {
						k.tier = tiers[tier].Name
					}
					asked = append(asked, k)
				}
			}
		}
	}
	return asked, skipped
}

// status says what a limit knows of the key.
func (k *keyLimit) status(s penstock.Status) KeyLimit {
	return KeyLimit{
		Rule: k.limit.Rule.Name, Limit: k.limit.Name, Kind: k.kind, Tier: k.tier, Rate: describe.Rate(k.plan), Algorithm: k.limit.Algorithm,
		Used: max(k.plan.Capacity()-s.Remaining, 0), Left: s.Remaining, ResetMS: milliseconds(s.ResetAfter), RetryMS: milliseconds(s.RetryAfter), Denies: s.RetryAfter > 0,
	}
}

// milliseconds rounds up. penstock.Never is -1.
func milliseconds(d time.Duration) int64 {
	if d == penstock.Never {
		return -1
	}
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}
