package service

import (
	"context"
	"fmt"
	"os"
	"sync"

	"github.com/penstock/penstock/cmd/penstock/internal/rides"
	"github.com/penstock/penstock/cmd/penstock/internal/settings"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/httplimit"
	"github.com/penstock/penstock/policy"
)

// Limits builds the gate that the settings name: by the policy in the file config, which is watched, or with demo and no file by the demo's
// own rules. Each value that comes from reload has the file read again.
func Limits(s settings.Settings, reload <-chan os.Signal) Builder {
	return func(life context.Context, d Deps) (Gate, Policy, error) {
		g := new(limits)
		if err := g.load(s, d); err != nil {
			return nil, Policy{}, err
		}
		store := d.Store
		if s.Store != "" {
			store = guard.Timeout(guard.TimeoutOptions{After: s.StoreTimeout})(store)
		}
		gate, err := httplimit.New(httplimit.Options{Store: store, Rules: g.rules, Observe: d.Observe})
		if err != nil {
			g.Close()
			return nil, Policy{}, err
		}
		g.Gate = gate
		d.Waiting(gate.Waiting)
		if g.watcher != nil {
			g.reloading.Go(func() { g.reloadOn(life, reload) })
		}
		return g, describe(g.rules()), nil
	}
}

// limits are a gate, and where its rules come from.
type limits struct {
	*httplimit.Gate
	rules     func() *policy.Rules
	watcher   *policy.Watcher // nil for the demo's own rules
	reloading sync.WaitGroup
}

func (g *limits) load(s settings.Settings, d Deps) error {
	keys := func(err error) {
		if err != nil {
			d.Log.Warn("the keys of tokens cannot be read; those that are known stay believed", "err", err)
		}
	}
	if s.Config == "" {
		if !s.Demo {
			return fmt.Errorf("%w: there is no policy; write --config rules.yaml, or --demo for one that comes along", settings.ErrInvalid)
		}
		rules, err := rides.Rules()
		g.rules = func() *policy.Rules { return rules }
		return err
	}
	loaded := make(chan struct{})
	defer close(loaded)
	var err error
	g.watcher, err = policy.Watch(s.Config, policy.WatchOptions{
		Keys: keys,
		Notify: func(r policy.Reload) {
			<-loaded // the file may change at once
			if r.Err != nil {
				d.Reloaded(Policy{File: s.Config}, r.Err)
				return
			}
			d.Reloaded(describe(g.rules()), nil)
		},
	})
	if err != nil {
		return err
	}
	g.rules = g.watcher.Rules
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

// Close ends the watching, after the life that the gate was built with.
func (g *limits) Close() error {
	if g.watcher == nil {
		return nil
	}
	g.reloading.Wait()
	return g.watcher.Close()
}

// describe is what the service needs to know of rules.
func describe(rules *policy.Rules) Policy {
	p := Policy{File: rules.Files()[0]}
	open, closed := 0, 0
	add := func(l *policy.Limit) {
		p.Rules = append(p.Rules, Rule{Name: l.Rule.Name, Limit: l.Name, Algorithm: l.Algorithm})
	}
	for _, rule := range rules.Rules() {
		for _, l := range rule.Limits {
			add(l)
			if l.Candidate != nil {
				add(l.Candidate)
			}
			switch {
			case l.Shadow:
			case l.Closed:
				closed++
			default:
				open++
			}
		}
	}
	switch {
	case closed == 0:
		p.OnFailure = "requests pass"
	case open == 0:
		p.OnFailure = "requests are refused"
	default:
		p.OnFailure = fmt.Sprintf("requests pass, but those under %d of %d limits are refused", closed, open+closed)
	}
	for _, w := range rules.Warnings() {
		p.Warnings = append(p.Warnings, w.Error())
	}
	p.Server = rules.Server()
	return p
}
