package service

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/testing/effort"
	"github.com/penstock/penstock/internal/testing/eventually"
	"github.com/penstock/penstock/internal/testing/redistest"
)

// signingKey is the key that verifies tokens in the tests of this file.
const signingKey = "LEAKsigningkeyLEAKsigningkeyLEAKsigningkey"

// Each identity and secret contains LEAK, or is an address that the test looks for.
func TestMetricsLogAndAdminAPINameNoClient(t *testing.T) {
	effort.SkipUnderRace(t)
	redis := redistest.Start(t)
	const policy = `
http: {trusted_proxies: [127.0.0.1]}
tokens: {secret: "` + signingKey + `", audience: a, issuer: i}
deny: [{header X-API-Key: LEAKfoe}]
allow: [{header X-API-Key: LEAKfriend}]
rules:
  - {name: key, match: {path: /key}, per: {key: header X-API-Key}, limits: [{rate: 1/d, candidate: {rate: 1/d, algorithm: sliding-log}}]}
  - {name: address, match: {path: /address}, per: ip, limits: [{rate: 1/d}]}
  - {name: claim, match: {path: /claim}, per: {sub: claim sub}, limits: [{rate: 1/d, algorithm: fixed-window}]}
  - {name: cookie, match: {path: /cookie}, per: {session: cookie session}, limits: [{rate: 1/d, shadow: true}]}
  - {name: query, match: {path: /query}, per: {token: query token}, limits: [{rate: 1/d, on_failure: closed}]}
  - {name: segment, match: {path: "/account/{name}"}, per: {account: segment name}, limits: [{in_flight: 1}]}
`
	r := startLimited(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Break") != "" {
			panic(http.ErrAbortHandler)
		}
	}), policy, map[string]string{"store": redis.URL(), "key-hash-secret": "LEAKpepper"})
	requests := []struct{ path, header string }{
		{"/key", "X-API-Key: LEAKkey"},
		{"/key", "X-API-Key: LEAKfoe"},
		{"/key", "X-API-Key: LEAKfriend"},
		{"/address", "X-Forwarded-For: 203.0.113.77"},
		{"/address", "X-Forwarded-For: 2001:db8:1ea:c::1"},
		{"/claim", "Authorization: Bearer " + tokenOf(`{"sub":"LEAKsubject","aud":"a","iss":"i","exp":4000000000}`)},
		{"/claim", "Authorization: Bearer LEAKforged.LEAKforged.LEAKforged"},
		{"/cookie", "Cookie: session=LEAKsession"},
		{"/query?token=LEAKtoken", ""},
		{"/query?token=LEAKtoken&x=%zz;", ""},
		{"/account/LEAKaccount", ""},
		{"/account/LEAK%00malformed", ""},
		{"/account/LEAKmalformed%2f..", ""},
	}
	sent := 0
	sendAll := func(headers ...string) {
		for _, request := range requests {
			for range 2 {
				r.mustSend("GET", request.path, append(headers, request.header)...)
				sent++
			}
		}
	}
	// This request causes every log line about requests.
	r.mustSend("GET", "/query?token=LEAKother", "X-Break: yes", "X-API-Key: LEAKkey", "X-Forwarded-For: 203.0.113.78")
	sent++
	sendAll()
	for _, key := range keysOf(t, redis) { // make every key corrupt: the store expects no list
		for _, command := range [][]string{{"DEL", key}, {"LPUSH", key, "LEAKpoison"}} {
			if _, err := redis.Do(command...); err != nil {
				t.Fatal(err)
			}
		}
	}
	// sendUntilCounted sends the requests again and again, because denials are cached for a second.
	sendUntilCounted := func(series string) {
		t.Helper()
		eventually.True(t, series, func() bool {
			sendAll()
			n := r.metric(series)
			return n != "" && n != "0"
		})
	}
	sendUntilCounted(`rate_limiter_errors_total{reason="corrupt"}`)
	redis.Kill()
	sendUntilCounted(`rate_limiter_requests_total{algorithm="token-bucket",limit="day",outcome="failed_closed",rule="query"}`)
	metrics, log := r.mustGet("http://"+r.Admin+"/metrics", 200), r.log.String()
	for _, series := range []string{
		`rate_limiter_requests_total{algorithm="fixed-window",limit="day",outcome="denied",rule="claim"}`,
		`rate_limiter_requests_total{algorithm="other",limit="other",outcome="refused",rule="other"}`,
		`rate_limiter_requests_total{algorithm="other",limit="other",outcome="exempt",rule="other"}`,
		`rate_limiter_requests_total{algorithm="other",limit="other",outcome="malformed",rule="other"}`,
		`rate_limiter_shadow_rejected_total{algorithm="token-bucket",limit="day",rule="cookie"}`,
		`rate_limiter_errors_total{reason="unreachable"}`,
	} {
		if n := r.metric(series); n == "" || n == "0" {
			t.Errorf("%s is %q; want more than 0, because the test must cause all events", series, n)
		}
	}
	if !strings.Contains(log, "no response from the upstream") || !strings.Contains(log, "the store made no decision") {
		t.Errorf("the log lacks a line that the test must cause: %s", log)
	}
	texts := map[string]string{"metrics": metrics, "log": log}
	for _, path := range []string{"state", "rules", "instances", "store", "health", "history", "offenders", "offenders?kind=units", "offenders?kind=near_limit&scope=instance"} {
		texts[path] = r.mustGet("http://"+r.Admin+"/api/v1/"+path, 200)
	}
	if !strings.Contains(texts["offenders"], `"count"`) {
		t.Errorf("the admin API shows no offender, which the test must cause: %s", texts["offenders"])
	}
	for _, secret := range []string{"leak", "203.0.113", "2001:db8:1", "pepper"} { // parts of identities and secrets
		for where, text := range texts {
			for line := range strings.Lines(text) {
				if strings.Contains(strings.ToLower(line), secret) {
					t.Errorf("%s has a line with the identity or secret %q: %s", where, secret, line)
				}
			}
		}
	}
	t.Logf("counted: %d requests whose client neither metrics, nor log, nor the admin API name", sent)
}

// tokenOf signs claims, and returns the token.
func tokenOf(claims string) string {
	encode := base64.RawURLEncoding.EncodeToString
	text := encode([]byte(`{"alg":"HS256"}`)) + "." + encode([]byte(claims))
	mac := hmac.New(sha256.New, []byte(signingKey))
	io.WriteString(mac, text)
	return text + "." + encode(mac.Sum(nil))
}

// keysOf returns all keys in Redis.
func keysOf(t *testing.T, redis *redistest.Server) (keys []string) {
	t.Helper()
	reply, err := redis.Do("KEYS", "*")
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range reply.([]any) {
		keys = append(keys, key.(string))
	}
	return keys
}
