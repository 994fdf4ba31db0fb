package service

import (
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/penstock/penstock/cmd/penstock/internal/console/adminapi"
	"github.com/penstock/penstock/internal/testing/eventually"
	"github.com/penstock/penstock/internal/testing/redistest"
)

// The timeline has the start, a reload with its changes, a bad file and a reset. Another instance
// shows them too.
func TestTimelineSaysWhatHappened(t *testing.T) {
	t.Parallel() // it waits most of the time
	redis := redistest.Start(t)
	const token = "a-token-of-operators"
	flags := limitedBy(t, twoPerDay, map[string]string{"store": redis.URL(), "operator-token": token})
	reload := make(chan os.Signal)
	r := startWithoutLeakCheck(t, hello, flags, reloadOn(reload))
	other := startWithoutLeakCheck(t, hello, limitedBy(t, twoPerDay, map[string]string{"store": redis.URL(), "operator-token": token}))
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
	// isShown reports whether a service shows an event of this instance, or of another one, with a
	// detail. Any value will do if it is empty. A reload may come twice, and one of them changes
	// nothing.
	isShown := func(at *testService, isSelf bool, kind, detail, value string) bool {
		for _, e := range readAdmin[adminapi.Timeline](at, "timeline", token).Events {
			got, ok := e.Details[detail]
			if e.IsSelf == isSelf && e.Kind == kind && ok && (value == "" || got == value) {
				return true
			}
		}
		return false
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
			eventually.True(t, "the event "+want.kind+" with "+want.detail+" "+want.value, func() bool {
				return isShown(at, at == r, want.kind, want.detail, want.value)
			})
		}
	}
	for _, line := range r.log.Lines("event=key_reset") {
		if strings.Contains(line, "key:abc") {
			t.Errorf("the log has a key in clear: %s", line)
		}
	}
}
