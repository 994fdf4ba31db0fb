package observe

import (
	"maps"
	"slices"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/labels"
)

// Requests calls f with each Rule and its numbers of requests. The index in byOutcome is the
// outcome. f must not keep this slice.
func (c *Counts) Requests(f func(rule Rule, byOutcome []uint64)) {
	byOutcome := make([]uint64, len(outcomes))
	for rule, s := range *c.seriesByRule.Load() {
		for i := range byOutcome {
			byOutcome[i] = s.requestsByOutcome[i].Load()
		}
		f(rule, byOutcome)
	}
}

// NearLimit calls f with each Rule and its number of requests that were allowed near the limit.
func (c *Counts) NearLimit(f func(rule Rule, n uint64)) {
	for rule, s := range *c.seriesByRule.Load() {
		f(rule, s.nearLimit.Load())
	}
}

// Rules returns all Rules, including Other.
func (c *Counts) Rules() []Rule { return slices.Collect(maps.Keys(*c.seriesByRule.Load())) }

// Decisions calls f with the number of decisions of each source.
func (c *Counts) Decisions(f func(source penstock.Source, n uint64)) {
	for i, source := range sources {
		f(source, c.decisionsBySource[i].Load())
	}
}

// Errors calls f with each reason, and the number of store calls that failed for it.
func (c *Counts) Errors(f func(reason string, n uint64)) {
	for i, reason := range reasons {
		f(reason, c.errorsByReason[i].Load())
	}
}

// UnknownOutcomes returns how many calls of the store failed although their charges may have been
// made.
func (c *Counts) UnknownOutcomes() uint64 { return c.unknownOutcome.Load() }

// Uncounted returns how many requests passed although a limit did not count them, because the store
// gave no answer and the limit fails open. ObserveDecision adds only decisions whose limits all
// fail open.
func (c *Counts) Uncounted() uint64 { return c.uncounted.Load() }

// TokensRejected calls f with the number of rejected tokens of each reason.
func (c *Counts) TokensRejected(f func(reason string, n uint64)) {
	for i, reason := range tokenReasons {
		f(reason, c.tokensRejectedByReason[i].Load())
	}
}

// BreakerChanges calls f with the number of changes to each state.
func (c *Counts) BreakerChanges(f func(to guard.State, n uint64)) {
	for i, state := range breakerStates {
		f(state, c.breakerChangesByState[i].Load())
	}
}

// Waiting returns how many requests wait for their turn.
func (c *Counts) Waiting() (sum int) {
	if all := c.waitingFuncs.Load(); all != nil {
		for _, count := range *all {
			sum += count()
		}
	}
	return sum
}

// Guards returns what SetGuards has set, or nil.
func (c *Counts) Guards() *Guards { return c.guards.Load() }

// Breakers returns the states of breakers as numbers, by the label of their node: 0 is closed, 1 is
// half open, 2 is open. Only labels.MaxNodes nodes have a label of their own. The other nodes share
// the label other, with the highest of their states.
func Breakers(byNode map[string]guard.State) map[string]int {
	all := make(map[string]int, min(len(byNode), labels.MaxNodes+1))
	for i, node := range slices.Sorted(maps.Keys(byNode)) {
		label, severity := labels.Node(node), severityOf(byNode[node])
		if i >= labels.MaxNodes {
			label, severity = labels.Other, max(severity, all[labels.Other])
		}
		all[label] = severity
	}
	return all
}

// severityOf returns the number of a state in metrics. A larger number is worse.
func severityOf(s guard.State) int {
	switch s {
	case guard.StateHalfOpen:
		return 1
	case guard.StateOpen:
		return 2
	}
	return 0
}
