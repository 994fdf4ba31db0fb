package metrics

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/penstock/penstock/cmd/penstock/internal/console/redisops"
	"github.com/penstock/penstock/internal/labels"
	penstockprom "github.com/penstock/penstock/observe/prometheus"
)

// storeWithNumbers returns the health of a store. All of its numbers differ.
func storeWithNumbers() StoreHealth {
	return StoreHealth{
		IsDegraded: true, Missing: []string{"scan"},
		Servers: []redisops.Server{{Memory: redisops.Memory{Used: 1, Max: 2, Policy: "allkeys-lru"}, Keys: 3, Evicted: 4, Expired: 5, CPU: 6 * time.Second, Scripts: 7, ScriptTime: 8 * time.Second,
			CachedScripts: 9, Clients: 10, MaxClients: 11, Refused: 12, Replicas: 13, Lag: 14}},
		Keys: &redisops.KeySample{Groups: map[string]float64{"search": 15, "gone": 16, "": 17}},
	}
}

func TestStoreHasMetrics(t *testing.T) {
	m := New("", nil, 80)
	m.SetRules([]Rule{{Name: "search", Limit: "second"}, {Name: "search", Limit: "day"}, {Name: "login", Limit: "hour"}})
	if strings.Contains(pageOf(m), "rate_limiter_store_") {
		t.Error("there are series of the store before AddStore is called")
	}
	health := storeWithNumbers()
	m.AddStore(func() StoreHealth { return health })
	m.StoreProbed(time.Millisecond)
	page := pageOf(m)
	for _, want := range []string{
		"degraded 1", `right_missing{right="info"} 0`, `right_missing{right="scan"} 1`, `memory_used_bytes{node="default"} 1`, `memory_max_bytes{node="default"} 2`, `can_evict{node="default"} 1`,
		`keys{node="default"} 3`, `evicted_keys_total{node="default"} 4`, `expired_keys_total{node="default"} 5`, `cpu_seconds_total{node="default"} 6`, `script_calls_total{node="default"} 7`,
		`script_seconds_total{node="default"} 8`, `cached_scripts{node="default"} 9`, `clients{node="default"} 10`, `max_clients{node="default"} 11`, `refused_connections_total{node="default"} 12`,
		`replicas{node="default"} 13`, `replication_lag_bytes{node="default"} 14`, `rule_keys{rule="search"} 15`, `rule_keys{rule="login"} 0`, `rule_keys{rule="other"} 33`, "probe_seconds_count 1",
	} {
		if !strings.Contains(page, "\nrate_limiter_store_"+want+"\n") {
			t.Errorf("the page lacks rate_limiter_store_%s", want)
		}
	}
	if problems, err := testutil.GatherAndLint(m.registry); err != nil || len(problems) > 0 {
		t.Errorf("the metrics have the problems %v, %v; want none", problems, err)
	}
	health = StoreHealth{}
	if page := pageOf(m); strings.Contains(page, "rate_limiter_store_keys") || strings.Contains(page, "rate_limiter_store_rule_keys") || !strings.Contains(page, "rate_limiter_store_degraded 0") {
		t.Errorf("after the numbers of the store became unknown, the page is %s; want degraded 0, and no series of keys", page)
	}
}

func TestSeriesOfTheStoreAreBounded(t *testing.T) {
	m := New("", nil, 80)
	var rules []Rule
	for i := range penstockprom.ManyRules + 1 {
		rules = append(rules, Rule{Name: fmt.Sprint("rule", i), Limit: "a", Algorithm: "b"})
	}
	m.SetRules(rules)
	health := StoreHealth{Keys: &redisops.KeySample{Groups: map[string]float64{"rule7": 1}}}
	for i := range labels.MaxNodes + 10 {
		health.Servers = append(health.Servers, redisops.Server{Memory: redisops.Memory{Address: fmt.Sprint("10.0.0.1:", i)}})
	}
	for i := range 10_000 {
		health.Keys.Groups[fmt.Sprint("foreign\xff\n", i)] = 1
	}
	m.AddStore(func() StoreHealth { return health })
	page := pageOf(m)
	if n := strings.Count(page, "\nrate_limiter_store_keys{"); n != labels.MaxNodes {
		t.Errorf("%d nodes have series; want %d", n, labels.MaxNodes)
	}
	if n := strings.Count(page, "\nrate_limiter_store_rule_keys{"); n != 2 || !strings.Contains(page, `rule_keys{rule="other"} 10000`) {
		t.Errorf("%d rules have series; want 2: rule7, and other with 10000 keys", n)
	}
}

// A reply of the store names its servers. The other series stay on the page.
func TestServerWhoseNameIsNotUTF8HasNoSeries(t *testing.T) {
	m := New("", nil, 80)
	m.AddStore(func() StoreHealth {
		return StoreHealth{Servers: []redisops.Server{{Memory: redisops.Memory{Address: "a\xff:6379"}}, {Memory: redisops.Memory{Address: "b:6379"}}}}
	})
	page := pageOf(m)
	if n := strings.Count(page, "\nrate_limiter_store_keys{"); n != 1 || !strings.Contains(page, `rate_limiter_store_keys{node="b:6379"} 0`) {
		t.Errorf("%d servers have series; want 1, that of b:6379", n)
	}
}
