package core

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/cmd/penstock/internal/console/activity"
	"github.com/penstock/penstock/cmd/penstock/internal/serve/demopolicy"
	"github.com/penstock/penstock/cmd/penstock/internal/serve/metrics"
	"github.com/penstock/penstock/cmd/penstock/internal/serve/settings"
	"github.com/penstock/penstock/internal/background"
	"github.com/penstock/penstock/internal/panicked"
	"github.com/penstock/penstock/policy"
	"github.com/penstock/penstock/policy/policyfile"
)

// rules are the current rules: of a watched policy file, of the demo, or none.
type rules struct {
	settings settings.Settings
	options  policyfile.Options
	metrics  *metrics.Metrics
	log      *slog.Logger

	current   policy.RuleSource
	first     Policy              // of the first load
	watcher   *policyfile.Watcher // nil without a policy file
	reloading sync.WaitGroup

	mu            sync.Mutex
	isFileInvalid bool          // the file's latest content is invalid
	since         time.Time     // when the current rules took effect
	digest        string        // of the current rules
	warnings      []string      // of the current rules
	inForce       *policy.Rules // the current rules, to compare the next ones with
}

// openRules loads the policy that the settings name, and the scripts of its limits. It watches the
// file until close is called.
func (c *Core) openRules(ctx context.Context) (*rules, error) {
	options := settings.PolicyOptions(c.Algorithms...)
	options.Check = c.checkRules
	r := &rules{settings: c.Settings, options: options, metrics: c.Metrics, log: c.Log}
	prepare := func(next *policyfile.Policy) {
		c.SetPlans(ctx, "policy", plansOf(next.Rules))
	}
	switch {
	case c.Settings.Config != "":
		if err := r.watch(prepare); err != nil {
			return nil, err
		}
		r.reloading.Go(func() { r.reloadOn(ctx, c.Reload) })
	case c.Settings.Demo:
		demo, err := demopolicy.Load(options, c.Settings.DemoTraffic)
		if err != nil {
			return nil, err
		}
		prepare(demo)
		r.current = demo.Rules
		r.recordFirst(demo)
	case !c.Settings.NeedsPolicy():
		none, err := policy.New(policy.Spec{})
		if err != nil {
			return nil, err
		}
		r.current = none
		r.recordFirst(&policyfile.Policy{Rules: none, Files: []string{""}})
	default:
		return nil, fmt.Errorf("%w: no policy; write --config rules.yaml, or --demo to try sample rules", settings.ErrInvalid)
	}
	return r, nil
}

// plansOf returns the plans of all limits. It includes those of new_identities, because their
// denials are recorded too.
func plansOf(rules *policy.Rules) []*penstock.Plan {
	all := rules.Plans()
	for _, rule := range rules.Spec().Rules {
		if rule.NewIdentities != nil {
			all = append(all, rule.NewIdentities)
		}
	}
	return all
}

// watch loads the file and watches it. prepare is called with new rules before they take effect.
func (r *rules) watch(prepare func(*policyfile.Policy)) (err error) {
	started := make(chan struct{})
	defer close(started)
	r.watcher, err = policyfile.Watch(r.settings.Config, policyfile.WatchOptions{
		Options: r.options,
		Ready:   prepare,
		Keys: func(err error) {
			if err != nil {
				r.log.Warn("cannot read the keys that verify tokens; the old keys stay in use", append([]any{"err", err}, stackOf(err)...)...)
			}
		},
		Notify: func(err error) {
			<-started // wait until r.watcher is set: the file may change before that
			if err != nil {
				r.reloadFailed(err)
				return
			}
			r.reloadSucceeded(r.watcher.Policy())
		},
	})
	if err != nil {
		return err
	}
	r.current = r.watcher
	r.recordFirst(r.watcher.Policy())
	return nil
}

func (r *rules) recordFirst(p *policyfile.Policy) {
	r.first = newPolicy(p, r.settings)
	r.since, r.digest = time.Now(), r.first.Digest
	r.warnings, r.inForce = r.first.Warnings, p.Rules
	r.metrics.SetRules(r.first.Rules)
}

// reloadSucceeded records the rules that a reload has put in force. It logs the change, and the
// warnings that the old rules did not have.
func (r *rules) reloadSucceeded(file *policyfile.Policy) {
	p := newPolicy(file, r.settings)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.metrics.Reloaded(metrics.ConfigPolicy, nil, time.Now())
	r.isFileInvalid = false
	for _, file := range p.EmptyDeny {
		if hasFilledDeny(r.inForce, file) {
			r.log.Error("a deny list has become empty; it denies no client now", "policy", p.File, "list", file)
		}
	}
	r.since, r.digest = time.Now(), p.Digest
	r.metrics.SetRules(p.Rules)
	r.logReload(p, r.inForce, file.Rules)
	isOld := func(warning string) bool { return slices.Contains(r.warnings, warning) }
	logWarnings(r.log, slices.DeleteFunc(slices.Clone(p.Warnings), isOld))
	if !reflect.DeepEqual(p.server, r.first.server) {
		r.log.Warn("the policy's server section has changed; restart to apply it", "policy", p.File)
	}
	r.warnings, r.inForce = p.Warnings, file.Rules
}

// logReload logs what a reload has changed. The line is a warning if the new rules may admit
// requests that the old rules denied.
func (r *rules) logReload(p Policy, before, after *policy.Rules) {
	level, kind, text := slog.LevelInfo, activity.Reloaded, "policy reloaded"
	weaker := weakerParts(before, after)
	if weaker != "" {
		level, kind, text = slog.LevelWarn, activity.Weakened, "policy reloaded; it may admit requests that the old one denied"
	}
	line := []any{activity.EventAttribute, kind, "policy", p.File, "digest", p.Digest, "rules", p.Count()}
	if weaker != "" {
		line = append(line, "weaker", weaker)
	}
	r.log.Log(context.Background(), level, text, append(line, policyChanges(before, after)...)...)
}

// reloadFailed records a reload that failed. The old rules stay in force.
func (r *rules) reloadFailed(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.metrics.Reloaded(metrics.ConfigPolicy, err, time.Now())
	r.isFileInvalid = true
	logMistakes(r.log, r.settings.Config, err)
}

// state returns whether the file's latest content is invalid, and when the current rules took
// effect.
func (r *rules) state() (isFileInvalid bool, since time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.isFileInvalid, r.since
}

func (r *rules) reloadOn(ctx context.Context, reload <-chan os.Signal) {
	background.ForEach(ctx, reload, func(os.Signal) { r.watcher.Reload() }) // Notify reports the result
}

func (r *rules) digestInForce() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.digest
}

// closeTimeout is how long close waits for a reload in progress. A large file can take longer.
const closeTimeout = time.Second

// close stops watching. It waits up to closeTimeout for a reload, which may go on after that.
func (r *rules) close() {
	if r.watcher == nil {
		return
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.reloading.Wait()
		r.watcher.Close()
	}()
	timer := time.NewTimer(closeTimeout)
	defer timer.Stop()
	select {
	case <-ended:
	case <-timer.C:
	}
}

// maxLogged is the largest number of mistakes that are logged for a policy, and of warnings. The
// command penstock validate shows all.
const maxLogged = 5

func logMistakes(log *slog.Logger, file string, err error) {
	const line = "policy reload failed; the old rules stay in force"
	var mistakes policyfile.Errors
	if !errors.As(err, &mistakes) {
		log.Error(line, append([]any{activity.EventAttribute, activity.ReloadFailed, "policy", file, "err", err}, stackOf(err)...)...)
		return
	}
	log.Error(line, activity.EventAttribute, activity.ReloadFailed, "policy", file, "mistakes", len(mistakes))
	for _, mistake := range mistakes[:min(len(mistakes), maxLogged)] {
		log.Error(mistake.Error())
	}
	if more := len(mistakes) - maxLogged; more > 0 {
		log.Error(fmt.Sprintf("and %d more mistakes; penstock validate shows all", more))
	}
}

func logWarnings(log *slog.Logger, warnings []string) {
	for _, warning := range warnings[:min(len(warnings), maxLogged)] {
		log.Warn(warning)
	}
	if more := len(warnings) - maxLogged; more > 0 {
		log.Warn(fmt.Sprintf("and %d more warnings; penstock validate shows all", more))
	}
}

// stackOf returns a log attribute with the stack if the error is a panic, else none.
func stackOf(err error) []any {
	if crash := (*panicked.Error)(nil); errors.As(err, &crash) {
		return []any{"stack", string(crash.Stack)}
	}
	return nil
}
