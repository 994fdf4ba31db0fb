package service

import (
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/penstock/penstock/cmd/penstock/internal/adminapi"
	"github.com/penstock/penstock/internal/eventually"
	"github.com/penstock/penstock/internal/redistest"
)

// The timeline has the start, a reload with its changes, a bad file and a reset. Another instance
// shows them too.
func TestTimelineSaysWhatHappened(t *testing.T) {
	redis := redistest.Start(t)
	const token = "a-token-of-operators"
	flags := limitedBy(t, twoPerDay, map[string]string{"store": redis.URL(), "operator-token": token})
	reload := make(chan os.Signal)
	r := start(t, hello, flags, reloadOn(reload))
	other := startBeside(t, hello, limitedBy(t, twoPerDay, map[string]string{"store": redis.URL(), "operator-token": token}))
	replaceFile(t, flags["config"], strings.Replace(twoPerDay, "2/d", "3/d", 1))
	reloadAndWait(reload)
	replaceFile(t, flags["config"], "rules: [{name: <script>}]")
	reloadAndWait(reload)
	if _, err := send("GET", "http://"+r.Listen, "X-Key: abc"); err != nil {
		t.Fatal(err)
	}
	reset, err := http.NewRequest("POST", "http://"+r.Admin+adminapi.Prefix+"key/reset", strings.NewReader(`{"key": "key:abc", "reason": "ticket 4711"}`))
	if err != nil {
		t.Fatal(err)
	}
	reset.Header.Set("Authorization", "Bearer "+token)
	reset.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(reset)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if text, _ := io.ReadAll(res.Body); res.StatusCode != 200 {
		t.Fatalf("the reset returns %d %s; want 200", res.StatusCode, text)
	}
	// find returns the first event of a kind that a service shows of this instance, or of another one.
	find := func(at *testService, isSelf bool, kind string) (found adminapi.TimelineEvent) {
		for _, e := range readAdmin[adminapi.Timeline](at, "timeline", token).Events {
			if e.IsSelf == isSelf && e.Kind == kind {
				found = e
			}
		}
		return found
	}
	for _, want := range []struct{ kind, detail, value string }{
		{"started", "digest", digestOf(twoPerDay)},
		{"reloaded", "changed", "limit api.day"},
		{"reload_failed", "mistakes", ""},
		{"key_reset", "reason", "ticket 4711"},
		{"key_reset", "key", "key:…"},
		{"key_reset", "limits", "api.day 1->0"},
	} {
		for _, at := range []*testService{r, other} {
			var e adminapi.TimelineEvent
			eventually.True(t, want.kind+" to be shown", func() bool { e = find(at, at == r, want.kind); return e.Kind != "" })
			if got, ok := e.Details[want.detail]; !ok || want.value != "" && got != want.value {
				t.Errorf("the event %s has the details %q; want %s with %q", want.kind, e.Details, want.detail, want.value)
			}
		}
	}
	for _, line := range r.log.Lines("event=key_reset") {
		if strings.Contains(line, "key:abc") {
			t.Errorf("the log has a key in clear: %s", line)
		}
	}
}
