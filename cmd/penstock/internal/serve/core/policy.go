package core

import (
	"fmt"
	"log/slog"

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

// Count returns the number of rules.
func (p Policy) Count() int {
	names := make(map[string]bool)
	for _, rule := range p.Rules {
		names[rule.Name] = true
	}
	return len(names)
}

// LogWarnings logs the first few warnings.
func (p Policy) LogWarnings(log *slog.Logger) { logWarnings(log, p.Warnings) }

func newPolicy(file *policyfile.Policy, s settings.Settings) Policy {
	rules := file.Rules
	p := Policy{
		File:      file.Files[0],
		Digest:    file.Digest,
		Rules:     observe.RulesOf(rules),
		OnFailure: describe.FailureModes(rules.All()),
		EmptyDeny: rules.EmptyDeny(),
	}
	p.server, _ = policy.SectionOf[*settings.Section](rules)
	if names := rules.ByHost(); len(names) > 0 && !s.PreserveHost {
		p.Warnings = append(p.Warnings, fmt.Sprintf("rule %s matches the host, but the upstream gets its own name as Host, not the client's. "+
			"A client can evade the rule with another host, unless the upstream reads X-Forwarded-Host; set preserve_host", names[0]))
	}
	for _, w := range file.Warnings {
		p.Warnings = append(p.Warnings, w.Error())
	}
	return p
}
