package service

import (
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/testing/effort"
	"github.com/penstock/penstock/internal/testing/redistest"
)

func TestInstancesShareLimitsExactlyWhileOneStops(t *testing.T) {
	effort.SkipUnderRace(t)
	const policy = `
on_failure: closed
rules:
  - name: ride
    per: {key: header X-API-Key}
    limits: [{rate: 60/d}, {name: log, rate: 60/d, algorithm: sliding-log}]
`
	const keys, requestsPerKey, limit = 6, 150, 60
	testStore := func(t *testing.T, store string) {
		var served [keys]atomic.Int64
		upstream := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			key := r.Header.Get("X-API-Key")
			served[key[0]-'a'].Add(1)
			time.Sleep(time.Millisecond) // so that some requests are in flight when one instance stops
		})
		flags := map[string]string{"store": store}
		flags = limitedBy(t, policy, flags)
		stays := start(t, upstream, flags)
		stops := startWithoutLeakCheck(t, upstream, flags)
		var allowed [keys]atomic.Int64
		var requests, denied, resent atomic.Int64
		sendToOne := func(key int) {
			instance := stays
			if rand.N(2) == 0 {
				instance = stops
			}
			header := "X-API-Key: " + string(rune('a'+key))
			res, err := send("POST", "http://"+instance.Listen, header)
			// The stopped instance accepts no new connections, but must respond on those that it accepted.
			if err != nil && instance == stops {
				resent.Add(1)
				res, err = send("POST", "http://"+stays.Listen, header)
			}
			switch {
			case err != nil:
				t.Error(err)
			case res.StatusCode == http.StatusOK:
				allowed[key].Add(1)
			case res.StatusCode == http.StatusTooManyRequests:
				denied.Add(1)
			default:
				t.Errorf("key %c got %s; want 200 or 429", 'a'+key, res.Status)
			}
			if requests.Add(1) == keys*limit/2 { // while the limits still have room
				stops.stop()
			}
		}
		var clients sync.WaitGroup
		for key := range keys {
			for range 2 { // each key has two clients
				clients.Go(func() {
					for range requestsPerKey / 2 {
						sendToOne(key)
					}
				})
			}
		}
		clients.Wait()
		stops.wait()
		for key := range keys {
			if allowed, served := allowed[key].Load(), served[key].Load(); allowed != limit || served != limit {
				t.Errorf("of %d requests with key %c the instances allowed %d, and the upstream served %d; want %d", requestsPerKey, 'a'+key, allowed, served, limit)
			}
		}
		// Half of the requests go to the instance that stops, and most of them come after the stop. That
		// none does has a chance below 2^-500.
		if resent.Load() == 0 {
			t.Error("no request was sent again because its instance had stopped; want some")
		}
		t.Logf("counted: %d requests to two instances of which one stopped (%d denied, %d sent again)", requests.Load(), denied.Load(), resent.Load())
	}
	t.Run("single", func(t *testing.T) { testStore(t, redistest.Start(t).URL()) })
	t.Run("cluster", func(t *testing.T) {
		testStore(t, "redis+cluster://"+strings.Join(redistest.StartCluster(t).Addrs(), ","))
	})
}
