package redistest

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestClockOfAServerJumpsAtOnce(t *testing.T) {
	t.Parallel()
	s, clock := StartClocked(t)
	wantReply(t, s, "OK", "SET", "k", "v", "EX", "60")
	for _, ahead := range []time.Duration{0, time.Hour, -time.Hour, 30 * time.Second, 61 * time.Second} {
		if err := clock.Set(ahead); err != nil {
			t.Fatal(err)
		}
		before := time.Now().Add(ahead)
		reply, err := s.Do("TIME")
		if err != nil {
			t.Fatal(err)
		}
		var text []string
		for _, part := range reply.([]any) {
			text = append(text, fmt.Sprint(part))
		}
		seconds, _ := strconv.ParseInt(text[0], 10, 64)
		us, _ := strconv.ParseInt(text[1], 10, 64)
		after := time.Now().Add(ahead)
		if at := time.Unix(seconds, us*1000); at.Before(before.Truncate(time.Microsecond)) || at.After(after) {
			t.Errorf("%v ahead, TIME is %s; want between %v and %v", ahead, strings.Join(text, "."), before, after)
		}
	}
	wantReply(t, s, nil, "GET", "k") // keys expire by this clock
}

func TestRelaunchedServerMayBeLoading(t *testing.T) {
	t.Parallel()
	s := Start(t)
	for _, command := range []string{"DEBUG POPULATE 1500", "SAVE"} {
		wantReply(t, s, "OK", strings.Fields(command)...)
	}
	s.Kill()
	if err := s.Relaunch("--key-load-delay", "1000", "--loading-process-events-interval-bytes", "1024"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Do("GET", "k"); err == nil || !strings.HasPrefix(err.Error(), "LOADING") {
		t.Errorf("GET during loading: %v; want the error LOADING", err)
	}
	if err := await(6*answerTimeout, s.checkReady); err != nil { // on a busy machine, each key takes several ms
		t.Error(err)
	}
}
