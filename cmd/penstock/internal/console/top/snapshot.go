// Package top shows what a running instance limits, as a table for a terminal.
package top

import (
	"context"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/penstock/penstock/cmd/penstock/internal/console/adminapi"
)

// A Snapshot is the state that the admin API returned at one time. As JSON it has the API's names.
type Snapshot struct {
	State     adminapi.State     `json:"state"`
	Rules     adminapi.Rules     `json:"rules"`
	Offenders adminapi.Offenders `json:"offenders"`
	Instances adminapi.Instances `json:"instances"`
	Now       adminapi.History   `json:"now"` // the sources and errors of the last nowSeconds
}

// A GetFunc requests a path of the admin API and decodes the response into answer. The path is
// relative to the prefix of the API.
type GetFunc func(ctx context.Context, path string, answer any) error

// nowSeconds is how many seconds Now covers. They are few, so that Print shows an outage soon.
const nowSeconds = 2

// Read reads all parts of a Snapshot. rule selects one rule; "" selects all.
func Read(ctx context.Context, get GetFunc, rule string) (*Snapshot, error) {
	s := new(Snapshot)
	for _, part := range []struct {
		path   string
		answer any
	}{
		{"rules", &s.Rules},
		{"offenders?limit=100", &s.Offenders},
		{"instances", &s.Instances},
	} {
		if err := get(ctx, part.path, part.answer); err != nil {
			return nil, err
		}
	}
	if err := s.Refresh(ctx, get); err != nil {
		return nil, err
	}
	s.keepRule(rule)
	return s, nil
}

// Refresh reads State and Now again, because they show an outage first. It keeps the other parts.
func (s *Snapshot) Refresh(ctx context.Context, get GetFunc) error {
	s.State, s.Now = adminapi.State{}, adminapi.History{}
	if err := get(ctx, "state", &s.State); err != nil {
		return err
	}
	return get(ctx, "history?"+url.Values{"rule": {""}, "last": {strconv.Itoa(nowSeconds)}}.Encode(), &s.Now)
}

// keepRule removes all other rules and their offenders. "" keeps all rules.
func (s *Snapshot) keepRule(rule string) {
	if rule == "" {
		return
	}
	s.Rules.Rules = slices.DeleteFunc(s.Rules.Rules, func(r adminapi.Rule) bool { return r.Name != rule })
	s.Offenders.Offenders = slices.DeleteFunc(s.Offenders.Offenders, func(o adminapi.Offender) bool { return o.Rule != rule })
}

func (s *Snapshot) HasRule(name string) bool {
	return slices.ContainsFunc(s.Rules.Rules, func(r adminapi.Rule) bool { return r.Name == name })
}

// self returns the instance that sent the snapshot, and how long it has run.
func (s *Snapshot) self() (self adminapi.Instance, uptime time.Duration) {
	for _, i := range s.Instances.Instances {
		if i.IsSelf {
			return i, s.State.Time.Sub(i.Started)
		}
	}
	return self, 0
}
