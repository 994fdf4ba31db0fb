package core

import (
	"fmt"
	"log/slog"
	"slices"

	"github.com/penstock/penstock/cmd/penstock/internal/serve/settings"
	"github.com/penstock/penstock/internal/policy/describe"
	"github.com/penstock/penstock/observe"
	"github.com/penstock/penstock/policy"
	"github.com/penstock/penstock/policy/policyfile"
)

// A Policy describes rules for the log and the metrics.
type Policy struct {
	File      string
	Digest    string            // as penstock validate prints it
	Rules     []observe.Rule    // one element for each limit
	OnFailure string            // failure modes of the limits, for the log
	Warnings  []string          // about likely mistakes
	EmptyDeny []string          // files of the deny list that have no values
	server    *settings.Section // the section server of the file
}

func (p Policy) Count() int {
	names := make(map[string]bool)
	for _, rule := range p.Rules {
		names[rule.Name] = true
	}
	return len(names)
}

func (p Policy) LogWarnings(log *slog.Logger) { logWarnings(log, p.Warnings) }

func newPolicy(file *policyfile.Policy, s settings.Settings) Policy {
	rules := file.Rules
	p := Policy{
		File:      file.Files[0],
		Digest:    file.Digest,
		Rules:     observe.RulesOf(rules),
		OnFailure: describe.FailureModes(rules.Spec().Rules),
		EmptyDeny: emptyDeny(rules),
	}
	p.server, _ = policy.SectionOf[*settings.Section](rules)
	if names := rulesByHost(rules); len(names) > 0 && !s.PreserveHost {
		p.Warnings = append(p.Warnings, fmt.Sprintf("rule %s matches the host, but the upstream gets its own name as Host, not the client's. "+
			"A client can evade the rule with another host, unless the upstream reads X-Forwarded-Host; set preserve_host", names[0]))
	}
	for _, w := range file.Warnings {
		p.Warnings = append(p.Warnings, w.Error())
	}
	return p
}

// hasFilledDeny reports whether the deny list reads values from a file, and the file has some.
func hasFilledDeny(rules *policy.Rules, file string) bool {
	isFilled := func(t policy.Test) bool { return t.File == file && !t.IsEmpty() }
	return slices.ContainsFunc(rules.Spec().Deny, func(when policy.Condition) bool { return slices.ContainsFunc(when, isFilled) })
}

// emptyDeny returns the files of the deny list that have no values. The clients that they listed
// before are no longer rejected.
func emptyDeny(rules *policy.Rules) (files []string) {
	for _, when := range rules.Spec().Deny {
		for i := range when {
			if t := &when[i]; t.File != "" && t.IsEmpty() {
				files = append(files, t.File)
			}
		}
	}
	return files
}

// rulesByHost returns the names of the enforced rules that depend on the host. Clients choose the
// host. So a client evades these rules if the same site also answers under another host.
func rulesByHost(rules *policy.Rules) (names []string) {
	isOfHost := func(t policy.Test) bool { return t.Source.Needs(policy.KindHost) }
	for _, rule := range rules.Spec().Rules {
		dependsOnHost := slices.ContainsFunc(rule.Match.Hosts, func(host string) bool { return host != "" }) || slices.ContainsFunc(rule.Match.Where, isOfHost)
		if rule.Enforces() && !rule.Shadow && dependsOnHost {
			names = append(names, rule.Name)
		}
	}
	return names
}
