package adminapi

import (
	"bufio"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/cmd/penstock/internal/console/denials"
)

func withDenials(o *Options) { o.Denials = denials.New(denials.Options{}) }

func TestDenialsAreSentMaskedAndFiltered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, withDenials)
		s := startLive(t, f)
		read := func(path string) chan Denial {
			conn, response := s.open(t, path, operatorHeader)
			t.Cleanup(func() { conn.Close() })
			if response.StatusCode != 200 || response.Header.Get("Content-Type") != "text/event-stream" {
				t.Fatalf("%s: status %d; want 200 with a stream of events", path, response.StatusCode)
			}
			got := make(chan Denial, 100)
			go func() {
				for lines := bufio.NewScanner(response.Body); lines.Scan(); {
					if text, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
						var d Denial
						if err := json.Unmarshal([]byte(text), &d); err != nil || strings.Contains(text, "4711") {
							t.Errorf("the event is %s, with the error %v; want JSON without the identity", text, err)
						}
						got <- d
					}
				}
			}()
			return got
		}
		all, rule, key := read("denials"), read("denials?rule=api"), read("denials?key=key:customer-4711")
		network := read("denials?key=ip:2001:db8::77") // the policy counts the network
		synctest.Wait()
		for _, e := range []admission.Event{
			{Rule: "api", Limit: "hour", Key: "key:customer-4711", Outcome: admission.Denied},
			{Rule: "address", Limit: "hour", Key: "key:customer-4711", Outcome: admission.Denied},
			{Rule: "address", Limit: "hour", Key: "ip:2001:db8::/64", Outcome: admission.Denied},
			{Rule: "api", Limit: "hour", Key: "key:b", Outcome: admission.Allowed},
		} {
			f.options.Denials.Observe(&e)
		}
		synctest.Wait()
		if fmt.Sprint(len(all), len(rule), len(key), len(network)) != "3 1 2 1" {
			t.Errorf("%d denials in all, %d of a rule, %d of a key, %d of a network; want 3, 1, 2, 1", len(all), len(rule), len(key), len(network))
		}
		d := <-rule
		if d.Rule != "api" || d.Limit != "hour" || d.Outcome != "denied" || d.Source != "store" || !strings.HasPrefix(d.Identity, "key:cu…11#") || d.Ref != f.ref("key:customer-4711") {
			t.Errorf("the denial is %+v; want api.hour, decided by the store, with a mask and a ref", d)
		}
	})
}

// A reader that disconnects makes room for another.
func TestReadersOfDenialsLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startLive(t, newFixture(t, withDenials))
		for i := range denials.MaxReaders + 1 {
			conn, response := s.open(t, "denials")
			if response.StatusCode != 200 {
				t.Fatalf("after %d readers have left, the next one gets %d; want 200", i, response.StatusCode)
			}
			conn.Close()
			synctest.Wait()
		}
	})
}

// An event shows the key and its ref as shown_identities allows, and never more.
func TestDenialsShowWhatTheSettingAllows(t *testing.T) {
	const key = "key:customer-4711"
	e := admission.Event{Rule: "api", Limit: "hour", Key: key, Outcome: admission.Denied}
	for _, c := range []struct {
		show       string
		isOperator bool
		identity   string // its beginning
		hasRef     bool
	}{
		{show: ShowOff}, {show: ShowOff, isOperator: true},
		{show: ShowMasked, identity: "key:cu…11#", hasRef: true}, {show: ShowMasked, isOperator: true, identity: "key:cu…11#", hasRef: true},
		{show: ShowFull, identity: "key:cu…11#", hasRef: true}, {show: ShowFull, isOperator: true, identity: key, hasRef: true},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := newFixture(t, func(o *Options) { withDenials(o); o.Identities = c.show })
			s := startLive(t, f)
			header := "X-None: 1"
			if c.isOperator {
				header = operatorHeader
			}
			conn, response := s.open(t, "denials", header)
			defer conn.Close()
			synctest.Wait()
			f.options.Denials.Observe(&e)
			var text string
			for lines := bufio.NewScanner(response.Body); text == "" && lines.Scan(); {
				text, _ = strings.CutPrefix(lines.Text(), "data: ")
				if text == lines.Text() {
					text = ""
				}
			}
			var d Denial
			if err := json.Unmarshal([]byte(text), &d); err != nil {
				t.Fatal(err)
			}
			isRight := strings.HasPrefix(d.Identity, c.identity) && (d.Identity == "") == (c.identity == "")
			if !isRight || (d.Ref == f.ref(f.Name(key))) != c.hasRef || (d.Ref != "") != c.hasRef {
				t.Errorf("with shown_identities %s, to an operator: %v, the event is %s; want the identity %s, and a ref: %v", c.show, c.isOperator, text, c.identity, c.hasRef)
			}
		})
	}
}

func TestMalformedQueriesOfDenialsAreRejected(t *testing.T) {
	f := newFixture(t, withDenials)
	for path, want := range map[string]string{
		"denials?a=b":           "unknown parameter",
		"denials?key=a&ref=b":   "name one key",
		"denials?ref=none":      "no offender of the last hour",
		"denials?rule=a&rule=b": "given 2 times",
		"denials?key=" + strings.Repeat("k", maxValue+1): "is longer than",
	} {
		if w := f.get(path); w.Code < 400 || !strings.Contains(w.Body.String(), want) {
			t.Errorf("%.40s returns %d %s; want an error with %q", path, w.Code, w.Body, want)
		}
	}
}

// Slow readers of denials are disconnected. Neither requests nor other readers wait for them.
func TestSlowReadersOfDenialsDelayNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, withDenials)
		s := startLive(t, f)
		for range maxReaders {
			slow, response := s.open(t, "denials")
			defer slow.Close()
			if response.StatusCode != 200 {
				t.Fatalf("a reader gets %s; want 200", response.Status)
			}
		}
		more, response := s.open(t, "denials")
		defer more.Close()
		if response.StatusCode != 200 {
			t.Errorf("a reader above the maximum gets %d; want 200, in place of the oldest", response.StatusCode)
		}
		began := time.Now()
		for range 10_000 {
			f.options.Denials.Observe(&admission.Event{Rule: "api", Limit: "hour", Key: "key:a", Outcome: admission.Denied})
		}
		other, response := s.open(t, "state")
		defer other.Close()
		if took := time.Since(began); response.StatusCode != 200 || took != 0 {
			t.Errorf("beside slow readers, a request took %v and got %d; want 200 without a wait", took, response.StatusCode)
		}
		time.Sleep(writeTimeout + time.Second)
		if n := f.readers.count(); n != 0 {
			t.Errorf("%d slow readers are still connected; want 0", n)
		}
	})
}
