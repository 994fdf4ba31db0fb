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
		{"POST", "/api/rides/request", nil, 200, `"ride":"R-1001"`},
		{"GET", "/api/fares/estimate", nil, 200, `"currency":"EUR"`},
		{"GET", "/api/drivers/nearby", nil, 200, `"id":"D-23"`},
		{"GET", "/api/trips/history", nil, 200, `"trips":[`},
		{"POST", "/login", url.Values{"user": {"ada"}, "password": {"guess"}}, 401, `"error"`},
		{"POST", "/login", url.Values{"user": {"ada"}, "password": {"penstock"}}, 200, `"welcome":"ada"`},
		{"GET", "/any/thing", nil, 200, `"path":"/any/thing"`},
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
	if s.Served() != 7 {
		t.Errorf("the server counted %d requests; want 7", s.Served())
	}
}
