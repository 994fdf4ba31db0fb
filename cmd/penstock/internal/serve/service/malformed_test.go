package service

import (
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/testing/eventually"
	"github.com/penstock/penstock/internal/testing/redistest"
)

// A malformed reply is a failure of the store: the fallback decides, and the service continues.
func TestMalformedReplyDoesNotEndTheService(t *testing.T) {
	redis := redistest.Start(t)
	proxy, err := redistest.NewProxy("unix", redis.Socket)
	if err != nil {
		t.Fatal(err)
	}
	defer proxy.Close()
	r := startLimited(t, hello, "rules: [{name: all, per: global, limits: [{rate: 1000000/d}]}]\n", map[string]string{"store": "redis://" + proxy.Addr()})
	mustDecide := func(after string) {
		t.Helper()
		const byStore = `rate_limiter_decisions_total{source="store"}`
		eventually.True(t, after+", the store to decide", func() bool {
			before := r.metric(byStore)
			return r.mustSend("GET", "/").StatusCode == 200 && r.metric(byStore) != before
		})
	}
	mustDecide("at the start")
	proxy.Only("evalsha")
	for name, reply := range map[string]string{
		"a negative array":         "*-5\r\n",
		"a negative string":        "$-2\r\n",
		"a negative map":           "%-3\r\n",
		"a nested negative array":  "*1\r\n*-5\r\n",
		"2 billion elements":       "*2000000000\r\n",
		"1 billion pairs":          "%1000000000\r\n",
		"a surplus reply":          ":1\r\n:1\r\n",
		"arrays, nested 200,000 x": strings.Repeat("*1\r\n", 200_000),
		"an error of 1 MB":         "-ERR " + strings.Repeat("x", 1<<20) + "\r\n",
		"the reply of a website":   "HTTP/1.1 400 Bad Request\r\n\r\n",
	} {
		losses := proxy.Losses()
		proxy.ReplaceReply(reply)
		eventually.True(t, name, func() bool {
			if res := r.mustSend("GET", "/"); res.StatusCode != 200 {
				t.Errorf("%s: the response is %s; want 200, from the fallback", name, res.Status)
			}
			return proxy.Losses() > losses
		})
		mustDecide("after " + name)
	}
	for _, line := range r.log.Lines("level=") {
		if len(line) > 1000 {
			t.Errorf("a line of the log has %d bytes: %.200s…; want at most 1,000", len(line), line)
		}
	}
	if len(r.log.Lines("malformed reply")) == 0 {
		t.Errorf("the log does not speak of a malformed reply: %s", r.log)
	}
}
