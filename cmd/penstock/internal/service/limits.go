package service

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/cmd/penstock/internal/rides"
	"github.com/penstock/penstock/cmd/penstock/internal/settings"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/httplimit"
	"github.com/penstock/penstock/policy"
)

// Limits builds the gate that the settings name: by the policy in the file config, which is
// watched, or with demo and no file by the demo's own rules. Each value that comes from reload has
// the file read again.
func Limits(s settings.Settings, reload <-chan os.Signal) Builder {
	return func(life context.Context, d Deps) (Gate, Policy, error) {
		g := new(limits)
		if err := g.load(s, d); err != nil {
			return nil, Policy{}, err
		}
		store, err := d.Store(func(limit *penstock.Limit) guard.Settings { return g.rules().Settings(limit) })
		if err != nil {
			g.Close()
			return nil, Policy{}, err
		}
		gate, err := httplimit.New(httplimit.Options{Store: store, Rules: g.rules, Observe: d.Observe, TokenRejected: d.TokenRejected})
		if err != nil {
			g.Close()
			return nil, Policy{}, err
		}
		g.Gate = gate
		d.Waiting(gate.Waiting)
		if g.watcher != nil {
			g.reloading.Go(func() { g.reloadOn(life, reload) })
		}
		return g, describe(g.rules(), s), nil
	}
}

// limits are a gate, and where its rules come from.
type limits struct {
	*httplimit.Gate
	rules     func() *policy.Rules
	watcher   *policy.Watcher // nil for the demo's own rules
	reloading sync.WaitGroup
	warned    []string // of the rules that were described last; only Notify's, once they are loaded
}

func (g *limits) load(s settings.Settings, d Deps) error {
	keys := func(err error) {
		if err != nil {
			d.Log.Warn("the keys of tokens cannot be read; those that are known stay believed", append([]any{"err", err}, stackOf(err)...)...)
		}
	}
	if s.Config == "" {
		if !s.Demo {
			return fmt.Errorf("%w: there is no policy; write --config rules.yaml, or --demo for one that comes along", settings.ErrInvalid)
		}
		rules, err := rides.Rules()
		if err != nil {
			return err
		}
		d.Load(limitsIn(rules)...)
		g.rules = func() *policy.Rules { return rules }
		return nil
	}
	loaded := make(chan struct{})
	defer close(loaded)
	var err error
	g.watcher, err = policy.Watch(s.Config, policy.WatchOptions{
		Keys:  keys,
		Ready: func(rules *policy.Rules) { d.Load(limitsIn(rules)...) },
		Notify: func(r policy.Reload) {
			<-loaded // the file may change at once
			if r.Err != nil {
				d.Reloaded(Policy{File: s.Config}, r.Err)
				return
			}
			now := describe(g.rules(), s)
			before := g.warned
			g.warned = slices.Clone(now.Warnings)
			now.Warnings = slices.DeleteFunc(now.Warnings, func(w string) bool { return slices.Contains(before, w) })
			d.Reloaded(now, nil)
		},
	})
	if err != nil {
		return err
	}
	g.rules = g.watcher.Rules
	g.warned = describe(g.rules(), s).Warnings
	return nil
}

func (g *limits) reloadOn(life context.Context, reload <-chan os.Signal) {
	for {
		select {
		case <-life.Done():
			return
		case <-reload:
			g.watcher.Reload() // Notify tells how it went
		}
	}
}

// closePatience is how long Close waits for a reload that is under way: it may read a large file,
// or one of a slow disk.
const closePatience = time.Second

// Close ends the watching, after the life that the gate was built with. A reload that takes longer
// than closePatience is left to itself.
func (g *limits) Close() error {
	if g.watcher == nil {
		return nil
	}
	ended := make(chan error, 1)
	go func() {
		g.reloading.Wait()
		ended <- g.watcher.Close()
	}()
	timer := time.NewTimer(closePatience)
	defer timer.Stop()
	select {
	case err := <-ended:
		return err
	case <-timer.C:
		return nil
	}
}

// limitsIn are all limits that requests may be charged to, in the order of their charges: those on
// trial are asked apart from the others.
func limitsIn(rules *policy.Rules) (all []penstock.Limit) {
	for _, rule := range rules.Rules() {
		var trial []penstock.Limit
		for _, l := range rule.Limits {
			if l.Shadow {
				trial = append(trial, l.Forms()...)
			} else {
				all = append(all, l.Forms()...)
			}
			if l.Candidate != nil {
				trial = append(trial, l.Candidate.Forms()...)
			}
		}
		all = append(all, trial...)
	}
	return all
}

// describe is what the service needs to know of rules.
func describe(rules *policy.Rules, s settings.Settings) Policy {
	p := Policy{File: rules.Files()[0], Digest: rules.Digest()}
	ways := make(map[guard.Failure]int)
	add := func(l *policy.Limit) {
		p.Rules = append(p.Rules, Rule{Name: l.Rule.Name, Limit: l.Name, Algorithm: l.Algorithm})
	}
	for _, rule := range rules.Rules() {
		if limit, ok := rule.NewIdentities(); ok {
			p.Rules = append(p.Rules, Rule{Name: rule.Name, Limit: limit.Name, Algorithm: limit.Algorithm.Title})
		}
		for _, l := range rule.Limits {
			add(l)
			if l.Candidate != nil {
				add(l.Candidate)
			}
			if !l.Shadow {
				ways[l.Guard.OnFailure]++
			}
		}
	}
	p.OnFailure = onFailure(ways)
	if names := rules.ByHost(); len(names) > 0 && !s.PreserveHost {
		p.Warnings = append(p.Warnings, fmt.Sprintf("rule %s goes by the host, and the upstream gets its own name as Host, whichever host a client writes: "+
			"a client that writes another host evades the rule, unless the upstream reads X-Forwarded-Host; set preserve_host", names[0]))
	}
	for _, w := range rules.Warnings() {
		p.Warnings = append(p.Warnings, w.Error())
	}
	p.Server, p.EmptyDeny = rules.Server(), rules.EmptyDeny()
	return p
}

// onFailure tells what becomes of requests when the store does not answer, by how many limits fail
// in each way.
func onFailure(ways map[guard.Failure]int) string {
	switch local, open, closed := ways[guard.Local], ways[guard.Open], ways[guard.Closed]; local + open + closed {
	case open:
		return "requests pass"
	case closed:
		return "requests are refused"
	case local:
		return "limits hold locally, by this gate's share"
	default:
		var each []string
		for _, way := range []struct {
			limits int
			text   string
		}{{local, "%d hold locally, by this gate's share"}, {open, "%d let requests pass"}, {closed, "%d refuse them"}} {
			if way.limits > 0 {
				each = append(each, fmt.Sprintf(way.text, way.limits))
			}
		}
		return fmt.Sprintf("of %d limits, %s", local+open+closed, strings.Join(each, ", "))
	}
}
