package jwt

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock/internal/panicked"
	"github.com/penstock/penstock/internal/testing/jwttest"
)

// A publisher is an issuer's JWKS behind an http.RoundTripper, so that a test can simulate hours of
// refreshes.
type publisher struct {
	mu    sync.Mutex
	set   string // the JWKS; "" if the issuer is unreachable
	reads int
}

func (p *publisher) publish(set string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.set = set
}

// readCount returns how often the set was read.
func (p *publisher) readCount() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.reads
}

func (p *publisher) RoundTrip(*http.Request) (*http.Response, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reads++
	if p.set == "" {
		return nil, errors.New("unreachable")
	}
	return &http.Response{StatusCode: 200, Body: io.NopCloser(strings.NewReader(p.set))}, nil
}

// byURL returns a Verifier that reads its keys from a URL.
func byURL(t *testing.T, url string) *Verifier {
	t.Helper()
	v, err := New(Config{JWKSURL: url}, "")
	if err != nil {
		t.Fatal(err)
	}
	v.now = func() time.Time { return tokenNow }
	return v
}

// publishedKeys returns a JWKS of the EdDSA keys with these numbers.
func publishedKeys(numbers ...int) string {
	var keys []string
	for _, n := range numbers {
		keys = append(keys, jwttest.JWK(jwttest.Pairs()["EdDSA"][n], fmt.Sprintf(`,"kid":"k%d"`, n)))
	}
	return jwttest.JWKS(keys...)
}

// tokenOfKey returns a token that the EdDSA key with this number signed.
func tokenOfKey(n int) string {
	return jwttest.Sign("EdDSA", jwttest.Pairs()["EdDSA"][n], fmt.Sprintf(`{"alg":"EdDSA","kid":"k%d"}`, n), `{"sub":"x",`+validClaims+`}`)
}

func accepts(v *Verifier, token string) bool {
	_, err := v.Claims(token)
	return err == nil
}

func TestNewKeyIsReadWhenATokenNamesIt(t *testing.T) {
	t.Parallel()
	jwttest.Pairs() // makes the keys before simulated time begins
	synctest.Test(t, func(t *testing.T) {
		p := &publisher{set: publishedKeys(0)}
		v := byURL(t, "https://issuer.example/jwks.json")
		v.keyFetcher.client.Transport = p
		var reports []error
		v.Start(func(err error) { reports = append(reports, err) })
		defer v.Close()
		if !accepts(v, tokenOfKey(0)) || accepts(v, tokenOfKey(1)) {
			t.Fatal("a token of the published key is rejected, or one of another key is accepted")
		}
		p.publish(publishedKeys(0, 1))
		time.Sleep(minFetchGap)
		if accepts(v, tokenOfKey(1)) {
			t.Error("a key was read although no token named it")
		}
		synctest.Wait()
		if !accepts(v, tokenOfKey(1)) || !accepts(v, tokenOfKey(0)) {
			t.Error("a token of the new key or of the old one is rejected")
		}
		p.publish(publishedKeys(1)) // the old key is withdrawn
		time.Sleep(DefaultRefresh)
		synctest.Wait()
		if accepts(v, tokenOfKey(0)) || !accepts(v, tokenOfKey(1)) {
			t.Error("a cached token of a withdrawn key is accepted, or one of the new key is rejected")
		}
		v.Close()
		if p.readCount() != 3 || len(reports) != 3 || errors.Join(reports...) != nil {
			t.Errorf("there were %d reads with the reports %v; want 3 reads without an error", p.readCount(), reports)
		}
		if !accepts(v, tokenOfKey(1)) {
			t.Error("after Close, the keys are no longer used")
		}
	})
}

func TestForgedKeyIDsCauseFewReads(t *testing.T) {
	t.Parallel()
	jwttest.Pairs() // makes the keys before simulated time begins
	synctest.Test(t, func(t *testing.T) {
		p := &publisher{set: publishedKeys(0)}
		v := byURL(t, "https://issuer.example/jwks.json")
		v.keyFetcher.client.Transport = p
		v.Start(nil)
		defer v.Close()
		const minutes, perSecond = 30, 4
		forged := 0
		for range minutes * 60 {
			for range perSecond {
				forged++
				v.Claims(jwttest.Base64(fmt.Sprintf(`{"alg":"EdDSA","kid":"%d"}`, forged)) + "." + jwttest.Base64(`{}`) + ".AAAA")
			}
			time.Sleep(time.Second)
		}
		if reads := p.readCount(); reads > minutes+1 || reads < minutes-1 {
			t.Errorf("%d forged key IDs in %d minutes caused %d reads; want about one a minute", forged, minutes, reads)
		}
		t.Logf("counted: %d forged key IDs (%d reads)", forged, p.readCount())
	})
}

func TestKeysAreReadWhenTheIssuerComesUp(t *testing.T) {
	t.Parallel()
	jwttest.Pairs() // makes the keys before simulated time begins
	synctest.Test(t, func(t *testing.T) {
		p := new(publisher)
		v := byURL(t, "https://issuer.example/jwks.json")
		v.keyFetcher.client.Transport = p
		var reports []error
		v.Start(func(err error) { reports = append(reports, err) })
		defer v.Close()
		if accepts(v, tokenOfKey(0)) {
			t.Error("a token is accepted without keys")
		}
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		// The reads come after 0, 1, 3, 7, 15, 31 and 63 seconds, and then every 60 seconds.
		if reads := p.readCount(); reads != 15 || len(reports) != reads {
			t.Errorf("there were %d reads and %d reports in ten minutes; want 15 of each", reads, len(reports))
		}
		for _, err := range reports {
			if err == nil || !strings.HasPrefix(err.Error(), "tokens.jwks_url: ") {
				t.Errorf("the report is %v; want an error of tokens.jwks_url", err)
			}
		}
		p.publish(publishedKeys(0))
		time.Sleep(minFetchGap)
		synctest.Wait()
		if !accepts(v, tokenOfKey(0)) {
			t.Error("the issuer is up, and its token is rejected")
		}
		p.publish("") // the issuer is down again: its keys stay in use
		time.Sleep(3 * DefaultRefresh)
		synctest.Wait()
		if !accepts(v, tokenOfKey(0)) {
			t.Error("while the issuer is down, a token of its last keys is rejected")
		}
		for _, odd := range []string{"{}", "[]", "<html>", `{"keys":[]}`, `{"keys":[{"kty":"oct","k":"AAAA"}]}`, `{"keys":null}`} {
			p.publish(odd)
			time.Sleep(2 * minFetchGap)
			synctest.Wait()
			if !accepts(v, tokenOfKey(0)) {
				t.Errorf("the response %s replaced the keys; want the previous keys to stay in use", odd)
			}
		}
	})
}

// A secret that an issuer publishes is no longer secret, so it must not be used.
func TestPublishedSecretsAreNotUsed(t *testing.T) {
	t.Parallel()
	pairs := jwttest.Pairs()
	synctest.Test(t, func(t *testing.T) {
		p := &publisher{set: jwttest.JWKS(jwttest.JWK(pairs["ES256"][0], `,"d":"AAAA"`), `{"kty":"oct","k":"`+jwttest.Base64(jwttest.Secret)+`"}`, `{"kty":"EC"}`, `7`,
			jwttest.JWK(pairs["EdDSA"][0], ""))}
		v := byURL(t, "https://issuer.example/jwks.json")
		v.keyFetcher.client.Transport = p
		v.Start(nil)
		defer v.Close()
		payload := `{"sub":"x",` + validClaims + `}`
		if accepts(v, jwttest.Sign("ES256", pairs["ES256"][0], `{"alg":"ES256"}`, payload)) {
			t.Error("a published private key is used")
		}
		if accepts(v, jwttest.Sign("HS256", []byte(jwttest.Secret), `{"alg":"HS256"}`, payload)) {
			t.Error("a published secret is used")
		}
		if !accepts(v, jwttest.Sign("EdDSA", pairs["EdDSA"][0], `{"alg":"EdDSA","kid":"any"}`, payload)) {
			t.Error("the valid key beside them is not used")
		}
	})
}

func TestSlowIssuerDelaysOnlyTheStart(t *testing.T) {
	t.Parallel()
	jwttest.Pairs() // makes the keys before simulated time begins
	synctest.Test(t, func(t *testing.T) {
		v := byURL(t, "https://issuer.example/jwks.json")
		v.keyFetcher.client.Transport = roundTripper(func(r *http.Request) (*http.Response, error) {
			<-r.Context().Done()
			return nil, r.Context().Err()
		})
		reports := make(chan error, 10)
		before := time.Now()
		v.Start(func(err error) { reports <- err })
		if waited := time.Since(before); waited != firstFetchWait { // the bubble's time is exact
			t.Errorf("Start waited %v; want %v", waited, firstFetchWait)
		}
		if accepts(v, tokenOfKey(0)) || time.Since(before) != firstFetchWait {
			t.Error("without keys, a token was accepted, or its check waited")
		}
		if err := <-reports; !errors.Is(err, context.DeadlineExceeded) || time.Since(before) != fetchTimeout {
			t.Errorf("reported %v after %v; want a timeout after %v", err, time.Since(before), fetchTimeout)
		}
		time.Sleep(2 * time.Second) // the next read is in progress
		before = time.Now()
		v.Close()
		if time.Since(before) != 0 || len(reports) != 0 {
			t.Errorf("Close waited %v and reported %d errors; want no wait and no errors", time.Since(before), len(reports))
		}
		select {
		case <-v.keyFetcher.ended:
		default:
			t.Error("Close returned before the read ended")
		}
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// Keys are read over real connections, with large responses, redirects and certificates.
func TestKeysOverHTTP(t *testing.T) {
	t.Parallel()
	respond := func(status int, header, value, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set(header, value)
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body)
		}
	}
	endless := func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, `{"keys":[`)
		for r.Context().Err() == nil {
			if _, err := io.WriteString(w, strings.Repeat(" ", 64<<10)); err != nil {
				return
			}
		}
	}
	for _, c := range []struct {
		name    string
		handler http.HandlerFunc
		want    string // a part of the error; "": there is no error
	}{
		{name: "good", handler: respond(200, "Content-Type", "application/json", publishedKeys(0, 1))},
		{name: "good, of odd type", handler: respond(200, "Content-Type", "text/html", publishedKeys(0))},
		{name: "one byte too long", handler: respond(200, "X-A", "b", publishedKeys(0)+strings.Repeat(" ", maxKeyBytes)), want: "the response is larger than 1 MiB"},
		{name: "endless", handler: endless, want: "the response is larger than 1 MiB"},
		{name: "endless header", handler: respond(200, "X-A", strings.Repeat("x", 128<<10), publishedKeys(0)), want: "header"},
		{name: "cut off", handler: func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "10000")
			_, _ = io.WriteString(w, publishedKeys(0))
		}, want: "unexpected EOF"},
		{name: "redirect", handler: respond(302, "Location", "http://127.0.0.1:1/jwks.json", ""), want: `redirects to "http://127.0.0.1:1/jwks.json", and redirects are not followed`},
		{name: "not found", handler: respond(404, "X-A", "b", publishedKeys(0)), want: "the response is 404"},
		{name: "no content", handler: respond(204, "X-A", "b", ""), want: "the response is 204"},
		{name: "down", handler: respond(503, "X-A", "b", publishedKeys(0)), want: "the response is 503"},
		{name: "empty", handler: respond(200, "X-A", "b", ""), want: "is not a JSON Web Key Set"},
		{name: "page", handler: respond(200, "X-A", "b", "<html>"), want: "is not a JSON Web Key Set"},
		{name: "too many", handler: respond(200, "X-A", "b", publishedKeys(make([]int, MaxKeys+1)...)), want: "has 33 keys"},
	} {
		server := httptest.NewServer(c.handler)
		v := byURL(t, server.URL+"/jwks.json")
		_, err := v.keyFetcher.read(context.Background())
		if (err == nil) != (c.want == "") || err != nil && (!strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "tokens.jwks_url: ")) {
			t.Errorf("%s: the error is %v; want one with %q (none if empty)", c.name, err, c.want)
		}
		server.Close()
	}

	secure := httptest.NewUnstartedServer(respond(200, "X-A", "b", publishedKeys(0)))
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	secure.StartTLS()
	defer secure.Close()
	v := byURL(t, secure.URL)
	if _, err := v.keyFetcher.read(context.Background()); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("with a self-signed certificate, the error is %v; want an error about the certificate", err)
	}
	v.keyFetcher.client.Transport = secure.Client().Transport
	if keys, err := v.keyFetcher.read(context.Background()); err != nil || len(keys) != 1 {
		t.Errorf("with the server's certificate trusted, %d keys are read, with the error %v; want one key and no error", len(keys), err)
	}
}

func TestServerThatStartsLaterIsRead(t *testing.T) {
	t.Parallel()
	jwttest.Pairs() // makes the keys before the server starts
	var up atomic.Bool
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !up.Load() {
			panic(http.ErrAbortHandler) // the connection ends without an answer
		}
		_, _ = io.WriteString(w, publishedKeys(1))
	}))
	server.Start()
	defer server.Close()

	v := byURL(t, server.URL)
	reports := make(chan error, 100)
	v.Start(func(err error) { reports <- err })
	defer v.Close()
	if err := <-reports; err == nil || accepts(v, tokenOfKey(1)) {
		t.Fatalf("the report is %v; want an error before the server starts, and no token accepted", err)
	}
	up.Store(true)
	deadline := time.After(time.Minute)
	for !accepts(v, tokenOfKey(1)) {
		select {
		case <-reports:
		case <-deadline:
			t.Fatal("after the server has started, the token is rejected")
		}
	}
}

func TestVerifyWhileKeysChange(t *testing.T) {
	t.Parallel()
	issuer := newIssuer(t, "EdDSA", nil)
	token := issuer.token("", `{"sub":"victim",`+validClaims+`}`)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 150 {
				c, err := issuer.verifier.Claims(token)
				if sub, _ := c.Text("sub"); err != nil || sub != "victim" {
					t.Errorf("the sub is %q with the error %v; want \"victim\" and no error", sub, err)
				}
				issuer.verifier.keys.Store(&keySet{list: issuer.verifier.configuredKeys})
			}
		})
	}
	wg.Wait()
}

func TestPanicWhileReadingKeysIsReported(t *testing.T) {
	f := newFetcher("http://127.0.0.1/keys", time.Hour, nil)
	f.client.Transport = roundTripper(func(*http.Request) (*http.Response, error) { panic("an unexpected key") })
	reports := make(chan error, 1)
	f.start(func(err error) { reports <- err }, func([]verifyKey) { t.Error("keys were read") })
	defer f.close()
	var caught *panicked.Error
	if err := <-reports; !errors.As(err, &caught) || !strings.Contains(string(caught.Stack), "panic") {
		t.Fatalf("the error is %v; want a panicked.Error with its stack", err)
	}
}
