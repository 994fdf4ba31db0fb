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

// A fetcher keeps reading an issuer's keys: at its interval; after a failure again in a second,
// then two, four, up to a minute; and once a minute at most because of a key ID that it does not
// know. No request ever waits for it.
type fetcher struct {
	url    string
	every  time.Duration
	wanted []string // algorithms; empty: each key's own
	client *http.Client

	asked chan struct{} // holds at most one wish
	stop  context.CancelFunc
	ended chan struct{}
}

// DefaultRefresh is how often JWKSURL is read unless Config.Refresh says otherwise.
const DefaultRefresh = time.Hour

const (
	minRefresh = time.Minute
	maxRefresh = 24 * time.Hour

	fetchTimeout   = 5 * time.Second // for the whole answer
	firstFetchWait = 2 * time.Second // how long start waits for it
	minFetchGap    = time.Minute     // between two readings, if only a token's key ID calls for the second
	fetchRetry     = time.Second     // after a failure; doubles up to minFetchGap
)

func newFetcher(url string, every time.Duration, wanted []string) *fetcher {
	return &fetcher{url: url, every: every, wanted: wanted, asked: make(chan struct{}, 1), client: &http.Client{
		Timeout: fetchTimeout,
		Transport: &http.Transport{
			Proxy:                  http.ProxyFromEnvironment,
			DisableKeepAlives:      true, // the next reading is far off
			ForceAttemptHTTP2:      true,
			MaxResponseHeaderBytes: 64 << 10,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// ask wishes for a reading because of a key that is not known. It never waits.
func (f *fetcher) ask() {
	select {
	case f.asked <- struct{}{}:
	default:
	}
}

func (f *fetcher) start(report func(error), believe func([]verifyKey)) {
	if report == nil {
		report = func(error) {}
	}
	ctx, stop := context.WithCancel(context.Background())
	first := make(chan struct{})
	answered := sync.OnceFunc(func() { close(first) })
	f.stop, f.ended = stop, make(chan struct{})
	go func() {
		defer close(f.ended)
		f.run(ctx, func(keys []verifyKey, err error) {
			if err == nil {
				believe(keys)
			}
			answered()
			defer panicked.Recover("reporting that keys were fetched")
			report(err)
		})
	}()
	patience := time.NewTimer(firstFetchWait)
	defer patience.Stop()
	select {
	case <-first:
	case <-patience.C:
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

// run reads the keys again and again until ctx ends, and tells what each reading gave.
func (f *fetcher) run(ctx context.Context, told func([]verifyKey, error)) {
	retry := fetchRetry
	for {
		keys, err := f.read(ctx)
		if ctx.Err() != nil {
			return
		}
		told(keys, err)
		next := f.every
		if err != nil {
			next = min(retry, f.every)
			retry = min(2*retry, minFetchGap)
		} else {
			retry = fetchRetry
		}
		if !f.pause(ctx, next) {
			return
		}
	}
}

// pause lasts until the next reading is due, or asked for and allowed. It says whether there is to
// be one.
func (f *fetcher) pause(ctx context.Context, next time.Duration) bool {
	due := time.NewTimer(next)
	defer due.Stop()
	allowed := time.Now().Add(minFetchGap)
	for {
		select {
		case <-ctx.Done():
			return false
		case <-due.C:
			return true
		case <-f.asked:
			if !time.Now().Before(allowed) {
				return true
			}
		}
	}
}

// read reads the keys once.
func (f *fetcher) read(ctx context.Context) ([]verifyKey, error) {
	keys, err := panicked.Try("read keys", func() ([]verifyKey, error) { return f.get(ctx) })
	if err != nil {
		return nil, fmt.Errorf("tokens.jwks_url: %w", err)
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
		return nil, fmt.Errorf("%s: leads to %.200q, which is not followed; write that address if it is the issuer's", request.URL.Redacted(), to)
	}
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: answers %s; check the address", request.URL.Redacted(), response.Status)
	}
	data, err := io.ReadAll(io.LimitReader(response.Body, maxKeyBytes+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", request.URL.Redacted(), err)
	}
	if len(data) > maxKeyBytes {
		return nil, fmt.Errorf("%s: answers more than 1 MiB; check the address", request.URL.Redacted())
	}
	keys, wrong := parseJWKS(data, f.wanted)
	if len(keys) == 0 {
		if len(wrong) == 0 {
			wrong = []error{errors.New("holds no key for tokens.algorithms; keys read before stay believed")}
		}
		return nil, fmt.Errorf("%s: %w", request.URL.Redacted(), errors.Join(wrong...))
	}
	return keys, nil
}
