package demoupstream

import (
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
)

func TestDemoResponses(t *testing.T) {
	s, err := Start()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if !strings.HasPrefix(s.Addr(), "127.0.0.1:") {
		t.Errorf("the server listens on %s; want 127.0.0.1", s.Addr())
	}
	for _, c := range []struct {
		method, path string
		form         url.Values
		status       int
		body         string
	}{
		{method: "POST", path: "/api/rides/request", status: 200, body: `"ride":"R-1001"`},
		{method: "GET", path: "/api/fares/estimate", status: 200, body: `"currency":"EUR"`},
		{method: "GET", path: "/api/drivers/nearby", status: 200, body: `"id":"D-23"`},
		{method: "GET", path: "/api/trips/history", status: 200, body: `"trips":[`},
		{method: "POST", path: "/login", form: url.Values{"user": {"ada"}, "password": {"guess"}}, status: 401, body: `"error"`},
		{method: "POST", path: "/login", form: url.Values{"user": {"ada"}, "password": {"penstock"}}, status: 200, body: `"welcome":"ada"`},
		{method: "GET", path: "/any/thing", status: 200, body: `"path":"/any/thing"`},
	} {
		request, _ := http.NewRequest(c.method, "http://"+s.Addr()+c.path, strings.NewReader(c.form.Encode()))
		request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		res, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if res.StatusCode != c.status || !strings.Contains(string(body), c.body) {
			t.Errorf("%s %s gets %s %s; want %d with %s", c.method, c.path, res.Status, body, c.status, c.body)
		}
	}
}
