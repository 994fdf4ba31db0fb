package quotaheaders

import (
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/penstock/penstock/httplimit/outbound"
)

// Package outbound, the client side, reads the headers that this package writes. Each dialect makes
// a client pause for the same time.
func TestClientReadsTheHeadersOfEachDialect(t *testing.T) {
	understood := 0
	rapid.Check(t, func(rt *rapid.T) {
		limit, status := drawLimit(rt), drawStatus(rt)
		status.Remaining = 0
		q := Quota{Policy: policyOf(limit.Name, limit), Status: status}
		until, hasReset := q.untilReset()
		now := time.Unix(1_800_000_000, 0)
		for _, dialect := range dialects {
			for _, inSeconds := range []bool{true, false} {
				isAmbiguous := dialect == Draft06 || dialect == XRateLimit && inSeconds
				if isAmbiguous && until > 10*365*24*time.Hour {
					continue // a client takes such a large number for a Unix time
				}
				h := make(http.Header)
				New(Settings{Dialects: []string{dialect}, IsResetInSeconds: inSeconds, Now: func() time.Time { return now }}).
					Write(h, []Quota{q}, false, 0)
				h.Set("Date", now.UTC().Format(http.TimeFormat))
				want := time.Duration(CeilSeconds(until)) * time.Second
				if !hasReset {
					want = 0
				}
				if pause := pauseAfter(t, http.StatusOK, h); pause != want {
					rt.Fatalf("%s: a response with %v makes a client pause for %v; want %v", dialect, h, pause, want)
				}
				if !hasReset {
					want = time.Second // the pause after a 429 without a time
				}
				if pause := pauseAfter(t, http.StatusTooManyRequests, h); pause != want {
					rt.Fatalf("%s: a 429 with %v makes a client pause for %v; want %v", dialect, h, pause, want)
				}
				understood++
			}
		}
	})
	t.Logf("counted: %d responses that server and client interpret alike", understood)
}

// pauseAfter returns for how long a client sends no requests after a response.
func pauseAfter(t *testing.T, status int, h http.Header) (pause time.Duration) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		client := &outbound.Transport{Base: fixedResponse{status, h}, MaxWait: -1, MaxPause: 1 << 62}
		r, err := http.NewRequest(http.MethodGet, "http://api.example/", nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := client.RoundTrip(r); err != nil {
			t.Fatal(err)
		}
		_, err = client.RoundTrip(r)
		var notSent *outbound.NotSentError
		if errors.As(err, &notSent) {
			pause = notSent.RetryAfter
		} else if err != nil {
			t.Fatal(err)
		}
	})
	return pause
}

// fixedResponse is a server that gives every request the same response.
type fixedResponse struct {
	status int
	header http.Header
}

func (a fixedResponse) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: a.status, Header: a.header, Body: http.NoBody}, nil
}
