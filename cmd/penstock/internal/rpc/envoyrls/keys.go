package envoyrls

import (
	"strings"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/cmd/penstock/internal/rpc/envoyconfig"
	"github.com/penstock/penstock/guard"
)

// A KeyLimit is a limit of a configuration that counts under a key.
type KeyLimit struct {
	Rule, Limit string // as events name them
	Key         string // of the counter; with share_threshold, several descriptors share it
	Plan        *penstock.Plan
	IsShadow    bool
	Settings    guard.Settings
}

// KeyLimits returns the limits of the configuration in force that count under a key of an event.
// The key is the domain and the entries of a descriptor, as in rides|api_key=abc. Limits that allow
// nothing or everything are not in the result, nor are limits that came with a request.
func (e *Engine) KeyLimits(key string) []KeyLimit {
	compiled := e.compiled.Load()
	if compiled == nil {
		return nil
	}
	name, entries, ok := parseKey(key)
	domain := compiled.config.Domain(name)
	if !ok || domain == nil {
		return nil
	}
	var m envoyconfig.Match
	domain.Match(entries, &m)
	if m.Limit == nil {
		return nil
	}
	l := compiled.limits[m.Limit.Index]
	if l.plan == nil || l.eventLimit == nil {
		return nil
	}
	return []KeyLimit{{
		Rule: l.eventLimit.Rule.Name, Limit: l.eventLimit.Name, Key: string(appendKey(nil, name, entries, m.Shared)), Plan: l.plan,
		IsShadow: m.Limit.ShadowMode || e.options.ShadowMode, Settings: l.eventLimit.Guard,
	}}
}

// KeyLimits returns what Engine.KeyLimits returns for an Engine with the options and the
// configuration. An error wraps penstock.ErrInvalid.
func KeyLimits(c *envoyconfig.Config, o Options, key string) ([]KeyLimit, error) {
	if err := o.setDefaults(); err != nil {
		return nil, err
	}
	e := &Engine{options: o}
	if err := e.SetConfig(c); err != nil {
		return nil, err
	}
	return e.KeyLimits(key), nil
}

// parseKey is the inverse of appendKey. ok is false if the key does not have that form.
func parseKey(key string) (domain string, entries []envoyconfig.Entry, ok bool) {
	parts := strings.Split(key, "|")
	for _, part := range parts[1:] {
		name, value, isEntry := strings.Cut(part, "=")
		if !isEntry {
			return "", nil, false
		}
		entries = append(entries, envoyconfig.Entry{Key: unescape.Replace(name), Value: unescape.Replace(value)})
	}
	return unescape.Replace(parts[0]), entries, len(entries) > 0
}

// unescape is the inverse of appendEscaped.
var unescape = strings.NewReplacer("~1", "|", "~2", "=", "~0", "~")
