package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/cmd/penstock/internal/text/rediscli"
	"github.com/penstock/penstock/internal/hashslot"
	"github.com/penstock/penstock/internal/redisclient"
	"github.com/penstock/penstock/internal/redisinfo"
	"github.com/penstock/penstock/redisstore"
)

const (
	probes       = 200              // decisions of all primaries together
	minProbes    = 20               // decisions of one primary, if they take less than maxBudget
	probeBudget  = 2 * time.Second  // for one primary; after it, minProbes decisions are enough
	maxBudget    = 10 * time.Second // for one primary; after it, one decision is enough
	probeTimeout = 3 * time.Second  // of one decision

	// maxScriptTime is the largest good median time of a script. The median is about 13 µs on an idle
	// machine, and 80 µs on two busy cores.
	maxScriptTime = 200 * time.Microsecond

	maxSlowdown = 2 // of the median time of a decision, since bench measured it
)

// probe is the limit of the probe decisions. No policy can use its keys. It never denies, and its
// state expires after some seconds.
var probe = penstock.PerSecond(1_000_000).WithName("self-test").MustCompile()

type countingClient struct {
	redisstore.Client
	commands *atomic.Int64
}

func (c countingClient) EvalSha(ctx context.Context, digest string, keys, args []string) (string, error) {
	c.commands.Add(1)
	return c.Client.EvalSha(ctx, digest, keys, args)
}

func (c countingClient) Eval(ctx context.Context, script string, keys, args []string) (string, error) {
	c.commands.Add(1)
	return c.Client.Eval(ctx, script, keys, args)
}

func (c countingClient) Load(ctx context.Context, key string, scripts []string) error {
	c.commands.Add(int64(len(scripts)))
	return c.Client.Load(ctx, key, scripts)
}

func (d *doctor) open() (*redisstore.Store, error) {
	option := d.option
	option.Dialer.KeepAlive = time.Minute // otherwise rueidis sends PING each second
	option.ForceSingleClient = d.kind == "single"
	return redisstore.New(countingClient{redisclient.Dial(option, newReplyError), &d.commands}, d.Keys)
}

func (d *doctor) checkDecisions(ctx context.Context, store *redisstore.Store) {
	for _, s := range d.primaries {
		key, ok := d.probeKey(s)
		if !ok {
			continue // the primary has no slots
		}
		times, err := d.decide(ctx, store, key)
		if err != nil {
			d.addFailedDecision(s, key, err)
			continue
		}
		d.add(Check{Name: "decisions", Server: s.address, Status: OK, Summary: fmt.Sprintf("%d decisions were made, under the key %s", len(times)+1, d.base+"{"+key+"}self-test")})
		d.judgeLatency(s, times)
	}
}

// probeKey returns a key whose slot the server has. It returns false if the server has no slot.
func (d *doctor) probeKey(s *server) (string, bool) {
	if d.kind != "cluster" || s.ranges == nil {
		return "doctor", true
	}
	for i := range 4 * hashslot.Slots { // enough keys to find one even if the server has few slots
		key := "doctor-" + strconv.Itoa(i)
		name, err := redisstore.KeyOf(penstock.Charge{Key: key, Plan: probe}, d.Keys)
		if err == nil && s.hasSlot(hashslot.Of([]byte(name))) {
			return key, true
		}
	}
	return "", false
}

// decide makes decisions under a key. It returns how long each took, except the first, which loads
// the script.
func (d *doctor) decide(ctx context.Context, store *redisstore.Store, key string) (times []time.Duration, err error) {
	begin := time.Now()
	most := max(probes/len(d.primaries), minProbes)
	for i := 0; i <= most; i++ {
		ctx, cancel := context.WithTimeout(ctx, probeTimeout)
		sent := time.Now()
		_, err := store.Decide(ctx, []penstock.Charge{{Key: key, Plan: probe, Cost: 1}})
		took := time.Since(sent)
		cancel()
		if err != nil {
			return nil, err
		}
		if i > 0 {
			times = append(times, took)
		}
		enough := minProbes
		if time.Since(begin) > maxBudget {
			enough = 1
		}
		if len(times) >= enough && time.Since(begin) > probeBudget {
			break
		}
	}
	return times, nil
}

// addFailedDecision adds a check that explains why a server made no decision under a key.
func (d *doctor) addFailedDecision(s *server, key string, err error) {
	c := Check{Name: "decisions", Server: s.address, Status: Failed, Summary: "the server made no decision: " + shortText(err), Why: "limits use on_failure",
		Facts: map[string]any{"reason": "other"}}
	var e *penstock.StoreError
	if errors.As(err, &e) {
		c.Facts["reason"] = e.Reason.String()
		switch e.Reason {
		case penstock.ReasonPermissionDenied:
			c.Needs, c.Remedy = e.Hint, d.grant(s, e.Hint)
		case penstock.ReasonOutOfMemory:
			c.Remedy = d.cli(s, maxMemoryCommand(s))
		case penstock.ReasonBusy:
			c.Why, c.Remedy = "a script of another program blocks the server; limits use on_failure", d.cli(s, "SCRIPT KILL")
		case penstock.ReasonCorrupt:
			c.Why = "another program wrote the probe key"
			c.Remedy = d.cli(s, "DEL "+rediscli.Word(d.base+"{"+key+"}self-test")) + ", and give the programs different prefixes"
		default:
			c.Remedy = "see the other checks"
		}
	}
	d.add(c)
}

// judgeLatency compares the time of decisions with store_timeout.
func (d *doctor) judgeLatency(s *server, times []time.Duration) {
	slices.Sort(times)
	last := len(times) - 1
	quantile := func(share float64) time.Duration { return times[min(int(share*float64(len(times))), last)] }
	p50, p99, longest := quantile(0.5), quantile(0.99), times[last]
	c := Check{Name: "latency", Server: s.address, Status: OK, Facts: map[string]any{"p50_us": p50.Microseconds(), "p99_us": p99.Microseconds(), "max_us": longest.Microseconds(),
		"decisions": len(times), "store_timeout_ms": d.StoreTimeout.Milliseconds()}}
	c.Summary = fmt.Sprintf("half of the decisions took %v, 99 %% at most %v; store_timeout is %v", rounded(p50), rounded(p99), d.StoreTimeout)
	scriptMicros, _ := strconv.ParseFloat(redisinfo.ListField(s.info["latency_percentiles_usec_evalsha"], "p50"), 64)
	if scriptMicros > 0 {
		c.Facts["script_p50_us"] = scriptMicros
	}
	if d.Measured > 0 {
		c.Facts["measured_p50_us"] = d.Measured.Microseconds()
		c.Summary += fmt.Sprintf("; earlier, bench measured %v for half of them", rounded(d.Measured))
	}
	longestGood := d.StoreTimeout / 2 // it leaves a reserve
	switch {
	case p50 > longestGood:
		c.Status, c.Why = Failed, "many decisions take longer than store_timeout, and then limits use on_failure"
	case p99 > longestGood:
		c.Status, c.Why = Warning, "some decisions may take longer than store_timeout, and then limits use on_failure"
	case d.Measured > 0 && p50 > maxSlowdown*d.Measured:
		c.Status, c.Why = Warning, fmt.Sprintf("decisions take %.1f times as long as when bench measured them", float64(p50)/float64(d.Measured))
	case time.Duration(scriptMicros*float64(time.Microsecond)) > maxScriptTime:
		c.Status, c.Summary = Warning, fmt.Sprintf("half of the scripts take longer than %.0f µs in the server", scriptMicros)
		const microsPerSecond = 1e6
		c.Why = fmt.Sprintf("the server's processor is slow or shared; it makes at most about %.0f decisions per second", microsPerSecond/scriptMicros)
	}
	if c.Status != OK {
		c.Remedy = d.cli(s, "SLOWLOG GET 10") + " shows slow commands of others; " + d.cli(s, "--latency") + " shows the network; or set a longer --store-timeout"
	}
	d.add(c)
}
