package clienttest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/testing/eventually"
	"github.com/penstock/penstock/redisstore"
)

// A disorder is what a proxy does to some of the replies, each in the protocol of Redis. nth is the
// number of a reply, from 0 on.
type disorder struct {
	name   string
	mangle func(nth int, reply []byte) []byte
}

// disorders returns new disorders, because some have a state.
func disorders() []disorder {
	every := func(n int, mangle func(reply []byte) []byte) func(int, []byte) []byte {
		return func(nth int, reply []byte) []byte {
			if nth%n != n-1 {
				return reply
			}
			return mangle(reply)
		}
	}
	replaceBy := func(text string) func([]byte) []byte { return func([]byte) []byte { return []byte(text) } }
	var held []byte
	return []disorder{
		{"all replies are lost", func(int, []byte) []byte { return nil }},
		{"one reply is lost", every(10, func([]byte) []byte { return nil })},
		{"one reply comes twice", every(10, func(reply []byte) []byte { return append(reply, reply...) })},
		{"two replies are swapped", func(nth int, reply []byte) []byte {
			switch nth % 10 {
			case 8:
				held = reply
				return nil
			case 9:
				return append(reply, held...)
			}
			return reply
		}},
		{"one reply is late", every(20, func(reply []byte) []byte {
			time.Sleep(2 * patienceOutOfStep)
			return reply
		})},
		{"another size", every(10, replaceBy("$5\r\n12345\r\n"))},
		{"another kind", every(10, replaceBy("+PONG\r\n"))},
	}
}

const (
	// patienceOutOfStep is the time until the deadline of each call.
	patienceOutOfStep = 30 * time.Millisecond

	callersOutOfStep = 8
	callsOutOfStep   = 20 // of each caller
)

// RepliesOutOfStep disturbs the replies to a client. A decision must always have the numbers of its
// own key, and after each disorder all calls must get a decision again. open makes the store.
func RepliesOutOfStep(t *testing.T, l Library, open func(*testing.T, redisstore.Client) *redisstore.Store) {
	for _, d := range disorders() {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			target := OneBehindProxy(t)
			store := open(t, l.One(t, target.Proxies[0].Addr(), Options{ReplyTimeout: shortReplyTimeout}))
			eventually.NoError(t, func() error { return store.Load(t.Context(), plansOf(1)...) })
			mangler := mangler{disorder: d}
			target.Proxies[0].Only("EVALSHA")
			target.Proxies[0].MangleReplies(mangler.mangle)
			var answers atomic.Int64
			var all sync.WaitGroup
			for who := range callersOutOfStep {
				all.Go(func() {
					for i := range callsOutOfStep {
						if callOutOfStep(t, store, who, i) == nil {
							answers.Add(1)
						}
					}
				})
			}
			all.Wait()
			target.Proxies[0].MangleReplies(nil)
			replies := mangler.count()
			if replies == 0 {
				t.Error("no reply was disturbed; want some")
			}
			t.Logf("counted: %d of %d calls got a decision (%d replies)", answers.Load(), callersOutOfStep*callsOutOfStep, replies)
			eventually.NoError(t, func() error { // the client recovers
				for i := range 10 * callersOutOfStep {
					if err := callOutOfStep(t, store, i%callersOutOfStep, i); err != nil {
						return err
					}
				}
				return nil
			})
		})
	}
}

// callOutOfStep charges the key of a caller: once, or by a batch that needs a script of the kind
// mixed. It returns the error of an unavailable store.
func callOutOfStep(t *testing.T, store penstock.Store, who, i int) error {
	ctx, cancel := context.WithTimeout(t.Context(), patienceOutOfStep)
	defer cancel()
	plans := plansOf(who)
	batch := []penstock.Charge{Spend(fmt.Sprint("k", who), plans[0], 1), Spend(fmt.Sprint("k", who), plans[1], 1)}
	batch = batch[:1+who%2]
	d, err := store.Decide(ctx, batch)
	if err != nil {
		if !errors.Is(err, penstock.ErrUnavailable) {
			t.Errorf("caller %d, call %d: %v; want an ErrUnavailable", who, i, err)
		}
		return err
	}
	for n := range batch {
		if left := d.Status(n).Remaining; !d.Allowed || left/unitsOfCaller != int64(who+1) {
			t.Errorf("caller %d, call %d: allowed %t, %d units left; want the numbers of its own key, which has %d to %d", who, i, d.Allowed, left, (who+1)*unitsOfCaller, (who+2)*unitsOfCaller-1)
		}
	}
	return nil
}

// unitsOfCaller is more than all calls spend. Each caller has another number of such units.
const unitsOfCaller = 1_000_000

// plansOf returns the limits of a caller. Two of them need a script of the kind mixed.
func plansOf(who int) []*penstock.Plan {
	limit := penstock.PerDay(int64(who+2)*unitsOfCaller - 1)
	one, two := limit, limit
	one.Name, two.Name = "one", "two"
	return []*penstock.Plan{one.With(penstock.FixedWindow).MustCompile(), two.With(penstock.SlidingLog).MustCompile()}
}

// A mangler splits what a server sends into replies, and applies a disorder to them.
type mangler struct {
	disorder disorder

	mu      sync.Mutex
	replies int
}

func (m *mangler) mangle(sent []byte) (mangled []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for len(sent) > 0 {
		n := lengthOfReply(sent)
		mangled = append(mangled, m.disorder.mangle(m.replies, bytes.Clone(sent[:n]))...)
		sent = sent[n:]
		m.replies++
	}
	return mangled
}

// count returns how many replies the mangler has got.
func (m *mangler) count() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.replies
}

// lengthOfReply returns the length of the first reply, which is a string or a line. If it is not
// whole, it returns the length of all.
func lengthOfReply(sent []byte) int {
	line, _, isWhole := bytes.Cut(sent, []byte("\r\n"))
	n := len(line) + len("\r\n")
	if size, err := strconv.Atoi(string(bytes.TrimPrefix(line, []byte("$")))); isWhole && err == nil && sent[0] == '$' && size >= 0 {
		n += size + len("\r\n")
	}
	return min(n, len(sent))
}
