package service

import (
	"net/http"
	"sync"
	"testing"

	"github.com/penstock/penstock/internal/testing/eventually"
	"github.com/penstock/penstock/internal/testing/redistest"
)

// Requests begin and end while Redis rejects their calls or gives no answer. Soon after it answers
// again, no slot of in_flight is used. By themselves, these slots would become free in a day.
func TestSlotsAreFreeAfterAnOutage(t *testing.T) {
	t.Parallel() // it waits most of the time
	const policy = `
rules:
  - {name: pool, match: {path: /**}, per: global, limits: [{in_flight: 100, ttl: 24h}]}
`
	const requests = 10
	run := func(command ...string) func(*redistest.Server) {
		return func(s *redistest.Server) {
			if _, err := s.Do(command...); err != nil {
				t.Errorf("%v: %v", command, err)
			}
		}
	}
	for _, fault := range []struct {
		name       string
		begin, end func(*redistest.Server)
	}{
		{"out of memory", run("CONFIG", "SET", "maxmemory", "1"), run("CONFIG", "SET", "maxmemory", "0")},
		{"stopped", (*redistest.Server).Pause, (*redistest.Server).Resume},
		{"clients paused", run("CLIENT", "PAUSE", "1500"), func(*redistest.Server) {}}, // it ends by itself
	} {
		t.Run(fault.name, func(t *testing.T) {
			redis := redistest.Start(t)
			canEnd := make(chan struct{})
			end := sync.OnceFunc(func() { close(canEnd) })
			t.Cleanup(end)
			upstream := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/slow" {
					<-canEnd
				}
			})
			r := startWithoutLeakCheck(t, upstream, limitedBy(t, policy, map[string]string{"store": redis.URL(), "store-timeout": "200ms"}))
			var sent sync.WaitGroup
			sendAll := func(path string) {
				for range requests {
					sent.Go(func() {
						if res, err := send("GET", "http://"+r.Listen+path); err != nil || res.StatusCode != 200 {
							t.Errorf("GET %s returned %v, error %v; want the status 200", path, res, err)
						}
					})
				}
			}
			sendAll("/slow")
			const slots = "ps1{global}pool:in-flight:concurrency"
			eventually.True(t, "Redis to lend the slots", func() bool {
				n, err := redis.Do("ZCOUNT", slots, "1", "+inf")
				return err == nil && n == int64(requests)
			})
			fault.begin(redis)
			end()
			sendAll("/fast")
			sent.Wait()
			fault.end(redis)
			eventually.True(t, "all slots to be free", func() bool {
				n, err := redis.Do("EXISTS", slots)
				return err == nil && n == int64(0)
			})
			eventually.True(t, "no slot to be unreturned", func() bool { return r.metric("rate_limiter_holds_unreturned") == "0" })
			returned := r.metric("rate_limiter_holds_returned_late_total")
			eventually.True(t, "a log line if slots were returned late, and none otherwise", func() bool {
				return (len(r.log.Lines("level=INFO", "were returned late")) > 0) == (returned != "0")
			})
			t.Logf("counted: %d requests, %s slots returned late", 2*requests, returned)
		})
	}
}
