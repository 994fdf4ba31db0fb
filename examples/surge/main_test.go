package main

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// runWithoutSockets runs the surge of main, with the same riders, service and limits, but without
// sockets.
func runWithoutSockets(t *testing.T, v variant) *result {
	t.Helper()
	target := &url.URL{Scheme: "http", Host: "rides.example.com"}
	service := newBackend(surge.poolTimeout)
	if v.policy == "" {
		return surge.with(v).run(direct{service}, target, service)
	}
	front, err := proxy(filepath.Join("..", v.policy), target, direct{service})
	if err != nil {
		t.Fatal(err)
	}
	return surge.with(v).run(direct{front}, target, service)
}

func TestOnlyTheLimitForTheBackendHelpsInASurge(t *testing.T) {
	runs, err := variants("both")
	if err != nil || len(runs) != 4 {
		t.Fatalf("there are %d variants, and the error is %v; want 4", len(runs), err)
	}
	original := surge
	t.Cleanup(func() { surge = original })
	surge.shorten()
	synctest.Test(t, func(t *testing.T) {
		var columns []column
		requests := int64(0)
		for _, v := range runs {
			r := runWithoutSockets(t, v)
			requests += r.all.total()
			columns = append(columns, column{v.name, r})
		}
		t.Logf("counted: %d requests of a surge", requests)
		t.Log("\n" + table(surge.endpoints, columns))
		alone, perClient := columns[0], columns[1]

		// A rider who waits for answers never sends as fast as a limit of 10/s allows.
		if denied := perClient.all.denied.TotalCount(); denied != 0 {
			t.Errorf("limits for each client denied %d requests; want none", denied)
		}
		if limitedP99, unlimitedP99 := percentileOf(perClient.all.allowed, 99), percentileOf(alone.all.allowed, 99); limitedP99 < unlimitedP99*9/10 {
			t.Errorf("with limits for each client, p99 is %v, and %v without limits; want about the same", limitedP99, unlimitedP99)
		}
		if perClient.all.failedPercent() < alone.all.failedPercent()*9/10 || perClient.backend.rate < alone.backend.rate*9/10 {
			t.Errorf("with limits for each client, %.1f%% fail and %.0f/s reach the backend, and without limits %.1f%% and %.0f/s; want about the same",
				perClient.all.failedPercent(), perClient.backend.rate, alone.all.failedPercent(), alone.backend.rate)
		}
		for _, limited := range columns[2:] {
			for _, failure := range check(alone.result, limited.result, true) {
				t.Errorf("%s: %s", limited.name, failure)
			}
			// The rule backend of surge.yaml admits 110/s, with bursts of 10.
			if most := 110 + 10/surge.duration.Seconds(); limited.backend.rate > most {
				t.Errorf("%s: %.1f requests/s reached the backend; want at most %.1f", limited.name, limited.backend.rate, most)
			}
			if least := 0.95 * 110; limited.backend.rate < least {
				t.Errorf("%s: %.1f requests/s reached the backend; want at least %.1f, because the load exceeds the limit", limited.name, limited.backend.rate, least)
			}
			if alone.backend.inUse < 95 || limited.backend.inUse > 80 || limited.backend.waitP99 > 100*time.Millisecond {
				t.Errorf("%s: %.0f%% of the pool are in use, and p99 of the wait is %v; want at most 80%% and 100ms, and more than 95%% without limits; got %.0f%%",
					limited.name, limited.backend.inUse, limited.backend.waitP99, alone.backend.inUse)
			}
		}
		patient, impatient := columns[2].all.denied.TotalCount(), columns[3].all.denied.TotalCount()
		if impatient < 5*patient {
			t.Errorf("impatient riders were denied %d times, and patient ones %d times; want at least 5 times as many", impatient, patient)
		}
	})
}

func TestKindsOfRidersHaveTheirVariants(t *testing.T) {
	for kind, want := range map[string]string{"patient": "false false false", "impatient": "true true true", "both": "false false false true"} {
		runs, err := variants(kind)
		var got []string
		for _, v := range runs {
			got = append(got, map[bool]string{false: "false", true: "true"}[v.areImpatient])
		}
		if strings.Join(got, " ") != want || err != nil {
			t.Errorf("%s: riders of the variants are impatient: %v, error %v; want %s", kind, got, err, want)
		}
	}
	if _, err := variants("angry"); err == nil {
		t.Error("variants of an unknown kind: no error; want one")
	}
}

func TestCheckFindsALimiterThatDoesNotHelp(t *testing.T) {
	alone, limited := newResult(1), newResult(1)
	alone.record(0, http.StatusOK, 10*time.Second)
	limited.record(0, http.StatusOK, 2*time.Second)
	limited.record(0, http.StatusServiceUnavailable, time.Second)
	limited.record(0, http.StatusTooManyRequests, 3*time.Millisecond)
	if failures := check(alone, limited, true); len(failures) != 3 {
		t.Errorf("check found %q; want three failures", failures)
	}
	if failures := check(alone, limited, false); len(failures) != 1 {
		t.Errorf("without times, check found %q; want one failure", failures)
	}
}

func TestTableIsWrittenInItsPlace(t *testing.T) {
	file := filepath.Join(t.TempDir(), "page.md")
	const text = "# Page\n<!-- surge: 14s, in memory -->\nold\n<!-- end -->\n<!-- surge: 3m0s, in memory -->\nolder\n<!-- end -->\nlast\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := openPage(file, "3m0s, in memory")
	if err == nil {
		err = p.save("new\n")
	}
	got, _ := os.ReadFile(file)
	if want := strings.Replace(text, "older", "new", 1); string(got) != want || err != nil {
		t.Errorf("the file is %q, error %v; want %q", got, err, want)
	}
	if _, err := openPage(file, "14s, on the moon"); err == nil || !strings.Contains(err.Error(), "no place") {
		t.Errorf("a file without a place: error %v; want one that says so", err)
	}
	if p, err := openPage("", ""); err != nil || p.save("text") != nil {
		t.Errorf("without a file, there is an error; want none (%v)", err)
	}
}

// make surge-data writes these tables.
func TestDocsHavePlacesForTheTables(t *testing.T) {
	full := surge
	full.useFullTimes()
	for _, title := range []string{surge.title(false), full.title(true)} {
		if _, err := openPage("../../docs/performance.md", title); err != nil {
			t.Error(err)
		}
	}
}

// direct calls a handler without a network.
type direct struct{ handler http.Handler }

func (d direct) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	d.handler.ServeHTTP(w, r)
	return w.Result(), nil
}
