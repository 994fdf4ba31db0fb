package core

import (
	"fmt"
	"log/slog"
	"strings"

	"github.com/penstock/penstock/cmd/penstock/internal/metrics"
	"github.com/penstock/penstock/cmd/penstock/internal/settings"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/policy"
	"github.com/penstock/penstock/policy/policyfile"
)

// A Policy describes rules for the log and the metrics.
type Policy struct {
	File      string
	Digest    string         // as penstock validate prints it
	Rules     []metrics.Rule // a row for each limit
	OnFailure string         // failure modes of the limits, for the log
	Warnings  []string       // about likely mistakes
	EmptyDeny []string       // files of the deny list without values
	server    *settings.Section
}

// Count is how many rules there are.
func (p Policy) Count() int {
	names := make(map[string]bool)
	for _, rule := range p.Rules {
		names[rule.Name] = true
	}
	return len(names)
}

// LogWarnings logs the first few warnings.
func (p Policy) LogWarnings(log *slog.Logger) { logWarnings(log, p.Warnings) }

func describe(file *policyfile.Policy, s settings.Settings) Policy {
	rules := file.Rules
	p := Policy{File: file.Files[0], Digest: file.Digest, EmptyDeny: rules.EmptyDeny()}
	p.server, _ = policy.SectionOf[*settings.Section](rules)
	modes := make(map[guard.FailureMode]int)
	add := func(l *policy.Limit) {
		p.Rules = append(p.Rules, metrics.Rule{Name: l.Rule.Name, Limit: l.Name, Algorithm: l.Algorithm})
	}
	for _, rule := range rules.Rules() {
		if limit := rule.NewIdentities; limit != nil {
			p.Rules = append(p.Rules, metrics.Rule{Name: rule.Name, Limit: limit.Name(), Algorithm: limit.Algorithm().Title()})
		}
		for _, l := range rule.Limits {
			add(l)
			if l.Candidate != nil {
				add(l.Candidate)
			}
			if !l.Shadow {
				modes[l.Guard.OnFailure]++
			}
		}
	}
	p.OnFailure = failureText(modes)
	if names := rules.ByHost(); len(names) > 0 && !s.PreserveHost {
		p.Warnings = append(p.Warnings, fmt.Sprintf("rule %s matches the host, but the upstream gets its own name as Host, not the client's. "+
			"A client can evade the rule with another host, unless the upstream reads X-Forwarded-Host; set preserve_host", names[0]))
	}
	for _, w := range file.Warnings {
		p.Warnings = append(p.Warnings, w.Error())
	}
	return p
}

// failureText counts the limits of each failure mode: "local" for one mode only, or "3 limits
// local, 1 limit closed".
func failureText(modes map[guard.FailureMode]int) string {
	var parts []string
	for _, mode := range []guard.FailureMode{guard.FailLocal, guard.FailClosed, guard.FailOpen} {
		switch n := modes[mode]; n {
		case 0:
		case 1:
			parts = append(parts, fmt.Sprintf("1 limit %v", mode))
		default:
			parts = append(parts, fmt.Sprintf("%d limits %v", n, mode))
		}
	}
	return strings.Join(parts, ", ")
}
