package service

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/penstock/penstock/internal/testing/eventually"
)

func TestPasswordGuessesThroughTheProxyAreLimited(t *testing.T) {
	const policy = `
rules:
  - name: login
    match: {method: POST, path: /login}
    per: {account: header X-Account}
    limits: [{rate: 10/h, algorithm: sliding-log, on_status: 401}]
`
	onStores(t, func(t *testing.T, flags map[string]string) {
		var logins atomic.Int64
		r := startLimited(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			logins.Add(1)
			switch r.Header.Get("X-Password") {
			case "right":
				io.WriteString(w, "welcome")
			case "broken":
				w.WriteHeader(500)
			default:
				w.WriteHeader(401)
			}
		}), policy, flags)
		logIn := func(account, password string, want int) {
			t.Helper()
			if res := r.mustSend("POST", "/login", "X-Account: "+account, "X-Password: "+password); res.StatusCode != want {
				t.Fatalf("%s with the %s password got %s after %d logins; want %d", account, password, res.Status, logins.Load(), want)
			}
		}
		for i := range 50 { // nine of the logins have a wrong password; errors of the upstream do not count
			logIn("eve", "right", 200)
			if i%5 == 0 && i < 45 {
				logIn("eve", "wrong", 401)
				logIn("eve", "broken", 500)
			}
		}
		logIn("eve", "wrong", 401) // the tenth wrong password
		before := logins.Load()
		for range 20 {
			logIn("eve", "wrong", 429)
			logIn("eve", "right", 429)
		}
		if logins.Load() != before {
			t.Errorf("after ten wrong passwords, %d more logins reached the upstream; want none", logins.Load()-before)
		}
		logIn("anna", "wrong", 401)
		logIn("anna", "right", 200)
		t.Logf("counted: %d logins through the proxy (10 wrong, then 40 denied)", logins.Load()+40)
	})
}

func TestUpstreamReportsTheCostOfARequest(t *testing.T) {
	const policy = `
rules:
  - name: chat
    per: {key: header X-API-Key}
    limits: [{name: tokens, rate: 1000/d, cost: {units: 100, actual: X-Tokens-Used}}]
`
	const estimate = 100 // units that a request is charged until its true cost is known
	onStores(t, func(t *testing.T, flags map[string]string) {
		r := startLimited(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if used := r.Header.Get("X-Cost"); used != "" {
				w.Header().Set("X-Tokens-Used", used)
			}
			w.WriteHeader(http.StatusEarlyHints)
			io.WriteString(w, "answer")
		}), policy, flags)
		for i, c := range []struct {
			headers []string
			left    int // after the true cost is charged
		}{
			{nil, 900},
			{[]string{"X-Cost: 30"}, 970},
			{[]string{"X-Cost: 0"}, 1000},
			{[]string{"X-Cost: 350"}, 650},
			{[]string{"X-Cost: -1"}, 900},
			{[]string{"X-Cost: many"}, 900},
			{[]string{"X-Tokens-Used: 0"}, 900}, // the client's header does not count
			{[]string{"X-Cost: 5000"}, 0},
		} {
			key := fmt.Sprint("X-API-Key: ", i)
			// This response has the quota before the true cost is known. The next response has the quota
			// after that.
			res := r.mustSend("GET", "/", append(c.headers, key)...)
			if quota := res.Header.Get("RateLimit"); res.StatusCode != 200 || !strings.HasPrefix(quota, `"chat.tokens";r=900;`) {
				t.Errorf("a request with %v got %s with RateLimit %s; want 200 with 900 left", c.headers, res.Status, quota)
			}
			next := r.mustSend("GET", "/", key)
			want, status := fmt.Sprintf(`"chat.tokens";r=%d;`, max(0, c.left-estimate)), 200
			if c.left < estimate {
				status = 429
			}
			if quota := next.Header.Get("RateLimit"); next.StatusCode != status || !strings.HasPrefix(quota, want) {
				t.Errorf("after a request with %v, the next got %s with RateLimit %s; want %d with %s", c.headers, next.Status, quota, status, want)
			}
		}
	})
}

func TestStreamsAndWebSocketsHoldASlot(t *testing.T) {
	const policy = `
rules:
  - name: live
    per: {key: header X-API-Key}
    limits:
      - {in_flight: 1, ttl: 1m}
      - {rate: 100/d, on_status: [101, 200]}
      - {name: queue, rate: 100/s, algorithm: leaky-bucket, burst: 10, max_wait: 1s}
`
	onStores(t, func(t *testing.T, flags map[string]string) {
		next := make(chan string)
		r := startLimited(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Upgrade") == "" {
				w.Header().Set("Content-Type", "text/event-stream")
				for event := range next {
					io.WriteString(w, event)
					http.NewResponseController(w).Flush()
				}
				return
			}
			conn, buffered, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
			io.Copy(conn, buffered)
		}), policy, flags)
		const key = "X-API-Key: a"
		checkIsBusy := func(what string) {
			t.Helper()
			if res := r.mustSend("GET", "/", key); res.StatusCode != 429 {
				t.Errorf("while %s is open, another request of its client got %s; want 429", what, res.Status)
			}
		}
		// awaitFreeSlot sends the request again and again until the slot is free.
		awaitFreeSlot := func(conn net.Conn, request string) *bufio.Reader {
			t.Helper()
			reader := bufio.NewReader(conn)
			var res *http.Response
			eventually.True(t, "the slot to be free", func() bool {
				var err error
				io.WriteString(conn, request)
				if res, err = http.ReadResponse(reader, nil); err != nil {
					t.Fatal(err)
				}
				if res.StatusCode == 429 {
					io.Copy(io.Discard, res.Body)
				}
				return res.StatusCode != 429
			})
			if res.StatusCode != 101 {
				t.Fatalf("the response is %s; want 101", res.Status)
			}
			return reader
		}
		const sockets, messages = 3, 50
		for range sockets {
			conn := r.dial()
			reader := awaitFreeSlot(conn, "GET / HTTP/1.1\r\nHost: h\r\n"+key+"\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
			for i := range messages {
				message := fmt.Sprintf("message %d\n", i)
				io.WriteString(conn, message)
				if got, err := reader.ReadString('\n'); got != message {
					t.Fatalf("message %q came back as %q (error %v)", message, got, err)
				}
			}
			checkIsBusy("a WebSocket")
			conn.Close()
		}
		var stream *http.Response
		eventually.True(t, "the slot to be free", func() bool {
			request, _ := http.NewRequest("GET", "http://"+r.Listen, nil)
			request.Header.Set("X-API-Key", "a")
			go func() { next <- "data: 0\n" }()
			res, err := http.DefaultClient.Do(request)
			if err != nil {
				t.Fatal(err)
			}
			stream = res
			if res.StatusCode == 429 {
				<-next
				io.Copy(io.Discard, res.Body)
				res.Body.Close()
			}
			return res.StatusCode == 200
		})
		defer stream.Body.Close()
		reader := bufio.NewReader(stream.Body)
		for i := range messages {
			event := fmt.Sprintf("data: %d\n", i)
			if got, err := reader.ReadString('\n'); got != event {
				t.Fatalf("the client received %q (error %v); want %q", got, err, event)
			}
			if i+1 < messages {
				next <- fmt.Sprintf("data: %d\n", i+1) // only after the previous event has arrived
			}
		}
		checkIsBusy("a stream")
		close(next)
		if rest, err := io.ReadAll(reader); len(rest) > 0 || err != nil {
			t.Errorf("after the last event, the stream has %q (error %v); want its end", rest, err)
		}
		t.Logf("counted: %d messages and events through the proxy", (sockets+1)*messages)
	})
}
