package jwt

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/penstock/penstock/internal/panicked"
)

// A fetcher reads an issuer's keys at an interval. After a failure it retries after 1 s, 2 s, 4 s
// and so on, up to a minute. An unknown key ID makes it read sooner, at most once a minute. No
// request waits for it.
type fetcher struct {
	url        string
	interval   time.Duration // between two reads
	algorithms []string      // allowed algorithms; empty: that of each key
	client     *http.Client

	readRequested chan struct{} // contains a value if a read is requested
	stop          context.CancelFunc
	ended         chan struct{}
}

const DefaultRefresh = time.Hour

const (
	minRefresh = time.Minute
	maxRefresh = 24 * time.Hour

	fetchTimeout    = 5 * time.Second // for the whole response
	firstFetchWait  = 2 * time.Second // the longest time that start waits for the first read
	minFetchGap     = time.Minute     // the least time before a read because of an unknown key ID
	firstRetryDelay = time.Second     // before the first retry; doubles after each failure, up to minFetchGap
)

func newFetcher(url string, interval time.Duration, algorithms []string) *fetcher {
	return &fetcher{url: url, interval: interval, algorithms: algorithms, readRequested: make(chan struct{}, 1), client: &http.Client{
		Timeout: fetchTimeout,
		Transport: &http.Transport{
			Proxy:                  http.ProxyFromEnvironment,
			DisableKeepAlives:      true, // the next read is much later
			ForceAttemptHTTP2:      true,
			MaxResponseHeaderBytes: 64 << 10,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// requestRead requests a read, because of an unknown key ID. It does not wait for the read.
func (f *fetcher) requestRead() {
	select {
	case f.readRequested <- struct{}{}:
	default:
	}
}

// start begins to read the keys, and waits for the first read, but at most firstFetchWait. After
// each read, it calls report with the error or nil. After each successful read, it calls use with
// the keys.
func (f *fetcher) start(report func(error), use func([]verifyKey)) {
	if report == nil {
		report = func(error) {}
	}
	ctx, stop := context.WithCancel(context.Background())
	firstRead := make(chan struct{})
	endFirstRead := sync.OnceFunc(func() { close(firstRead) })
	f.stop, f.ended = stop, make(chan struct{})
	go func() {
		defer close(f.ended)
		f.run(ctx, func(keys []verifyKey, err error) {
			if err == nil {
				use(keys)
			}
			endFirstRead()
			defer panicked.Recover("reporting that keys were fetched")
			report(err)
		})
	}()
	timeout := time.NewTimer(firstFetchWait)
	defer timeout.Stop()
	select {
	case <-firstRead:
	case <-timeout.C:
	}
}

func (f *fetcher) close() {
	if f.stop != nil {
		f.stop()
		<-f.ended
	}
}

func (f *fetcher) isRunning() bool {
	if f.stop == nil {
		return false
	}
	select {
	case <-f.ended:
		return false
	default:
		return true
	}
}

// run reads the keys regularly until ctx ends. run calls done with the result of each read.
func (f *fetcher) run(ctx context.Context, done func([]verifyKey, error)) {
	retry := firstRetryDelay // the time before the next retry
	for {
		keys, err := f.read(ctx)
		if ctx.Err() != nil {
			return
		}
		done(keys, err)
		untilNext := f.interval
		if err != nil {
			untilNext = min(retry, f.interval)
			retry = min(2*retry, minFetchGap)
		} else {
			retry = firstRetryDelay
		}
		if !f.waitForNext(ctx, untilNext) {
			return
		}
	}
}

// waitForNext waits for the given time, or until a read is requested and allowed. It returns false
// if ctx ends first.
func (f *fetcher) waitForNext(ctx context.Context, untilNext time.Duration) bool {
	due := time.NewTimer(untilNext)
	defer due.Stop()
	allowedAt := time.Now().Add(minFetchGap)
	for {
		select {
		case <-ctx.Done():
			return false
		case <-due.C:
			return true
		case <-f.readRequested:
			if !time.Now().Before(allowedAt) {
				return true
			}
		}
	}
}

func (f *fetcher) read(ctx context.Context) ([]verifyKey, error) {
	keys, err := panicked.Try("read keys", func() ([]verifyKey, error) { return f.get(ctx) })
	if err != nil {
		return nil, &FieldError{"jwks_url", err}
	}
	return keys, nil
}

func (f *fetcher) get(ctx context.Context) ([]verifyKey, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, f.url, nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept", "application/jwk-set+json, application/json")
	request.Header.Set("User-Agent", "penstock")
	response, err := f.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if to := response.Header.Get("Location"); response.StatusCode/100 == 3 && to != "" {
		return nil, fmt.Errorf("%s: it redirects to %.200q, and redirects are not followed; write that address if it is the issuer's", request.URL.Redacted(), to)
	}
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: the response is %s; check the address", request.URL.Redacted(), response.Status)
	}
	data, err := io.ReadAll(io.LimitReader(response.Body, maxKeyBytes+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", request.URL.Redacted(), err)
	}
	if len(data) > maxKeyBytes {
		return nil, fmt.Errorf("%s: the response is larger than 1 MiB; check the address", request.URL.Redacted())
	}
	keys, wrong := parseJWKS(data, f.algorithms)
	if len(keys) == 0 {
		if len(wrong) == 0 {
			wrong = []error{errors.New("has no key for tokens.algorithms; the previous keys stay in use")}
		}
		return nil, fmt.Errorf("%s: %w", request.URL.Redacted(), errors.Join(wrong...))
	}
	return keys, nil
}
