package service

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

const corsPolicy = `
http: {cors: {origins: https://app.example.com, expose: X-Request-Id}}
deny: {header X-Banned: "yes"}
rules: [{name: a, match: {path: /limited}, per: ip, limits: [{rate: 1/h}]}]
`

func TestAllowedOriginsCanReadEveryResponse(t *testing.T) {
	preflights := make(chan string, 10)
	r := startLimited(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header.Set("Access-Control-Allow-Origin", r.Header.Get("Origin"))
		header.Set("Access-Control-Expose-Headers", "X-Upstream")
		if r.Method == http.MethodOptions {
			header.Set("Access-Control-Allow-Methods", "PUT")
			preflights <- r.URL.Path
		}
		if r.URL.Path == "/broken" {
			panic(http.ErrAbortHandler)
		}
	}), corsPolicy, map[string]string{"max-body": "10B"})
	const app = "https://app.example.com"
	// request sends a request. headers are names and values by turns.
	request := func(method, path, body string, headers ...string) *http.Response {
		t.Helper()
		req, err := http.NewRequest(method, "http://"+r.Listen+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Origin", app)
		for i := 0; i < len(headers); i += 2 {
			req.Header.Set(headers[i], headers[i+1])
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		io.Copy(io.Discard, res.Body)
		res.Body.Close()
		return res
	}
	for _, c := range []struct {
		method, path, body string
		headers            []string // names and values
		status             int
	}{
		{method: "GET", path: "/limited", body: "", headers: nil, status: 200},
		{method: "GET", path: "/limited", body: "", headers: nil, status: 429},
		{method: "GET", path: "/a%00", body: "", headers: nil, status: 400},
		{method: "GET", path: "/", body: "", headers: []string{"X-Banned", "yes"}, status: 403},
		{method: "PUT", path: "/", body: strings.Repeat("a", 11), headers: nil, status: 413},
		{method: "GET", path: "/broken", body: "", headers: nil, status: 502},
	} {
		res := request(c.method, c.path, c.body, c.headers...)
		if res.StatusCode != c.status || strings.Join(res.Header["Access-Control-Allow-Origin"], "|") != app {
			t.Errorf("%s %s got %s with the headers %v; want %d, which %s may read", c.method, c.path, res.Status, res.Header, c.status, app)
		}
		exposed := "X-Request-Id, RateLimit, RateLimit-Policy, Retry-After"
		if c.status == 200 {
			exposed += "|X-Upstream"
		}
		if got := strings.Join(res.Header["Access-Control-Expose-Headers"], "|"); got != exposed {
			t.Errorf("%s %s: Access-Control-Expose-Headers is %q; want %q", c.method, c.path, got, exposed)
		}
		if c.status != 200 && res.Header.Get("Vary") != "Origin" {
			t.Errorf("%s %s: Vary is %q; want Origin", c.method, c.path, res.Header.Get("Vary"))
		}
	}
	for range 3 {
		res := request("OPTIONS", "/limited", "", "Access-Control-Request-Method", "PUT")
		if res.StatusCode != 200 || res.Header.Get("Access-Control-Allow-Methods") != "PUT" || <-preflights != "/limited" {
			t.Errorf("a preflight got %s %v; want the upstream's 200 that allows PUT", res.Status, res.Header)
		}
	}
}
