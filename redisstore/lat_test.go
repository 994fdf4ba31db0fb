package redisstore

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/redistest"
	"github.com/redis/rueidis"
)

func TestCost(t *testing.T) {
	server, err := redistest.Launch()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	o, _ := ParseURL(server.URL())
	rc, _ := rueidis.NewClient(o)
	defer rc.Close()
	s, _ := New(NewRueidis(rc), Options{})
	for _, same := range []bool{true, false} {
		l, _ := penstock.PerDay(1_000_000_00).Ready()
		g := gatherer{store: s}
		for i := range 64 {
			key := "k"
			if !same {
				key = fmt.Sprintf("user:%07d", i)
			}
			var c call
			ch := penstock.Charge{Key: key, Limit: l, Cost: 1}
			plan, _ := l.Plan()
			c.charges = append(c.charges, charge{&ch, plan})
			g.enqueueLocked(context.Background(), &c)
		}
		batch := g.next(nil)
		var c call
		rc.Do(context.Background(), rc.B().Arbitrary("CONFIG", "RESETSTAT").Build())
		for range 3000 {
			s.decideRows(context.Background(), &c, batch, batch[0].script)
			if batch[0].err != nil {
				t.Fatal(batch[0].err)
			}
		}
		info, _ := rc.Do(context.Background(), rc.B().Arbitrary("INFO", "commandstats").Build()).ToString()
		for _, line := range strings.Split(info, "\r\n") {
			if strings.Contains(line, "cmdstat") {
				t.Log(same, line)
			}
		}
	}
}
