package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/testing/eventually"
	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/redisstore"
)

func TestSummariesAreReadWhileTheirInstancesLive(t *testing.T) {
	t.Parallel()
	cluster := redistest.SharedCluster(t)
	for name, url := range map[string]string{"single": redistest.Start(t).URL(), "cluster": "redis+cluster://" + strings.Join(cluster.Addrs(), ",")} {
		t.Run(name, func(t *testing.T) {
			ctx, prefix := context.Background(), newPrefix()
			s := open(t, url, redisstore.Options{Prefix: prefix})
			const instances = 45
			for i := range instances {
				name := fmt.Sprintf("i%02d", i)
				if _, err := s.Heartbeat(ctx, name, time.Hour+time.Duration(i)*time.Second); err != nil {
					t.Fatal(err)
				}
				if i == 7 {
					continue // it has no summary yet
				}
				if err := s.WriteSummary(ctx, name, "a\n\x00b 1 2\n"+name, time.Hour); err != nil {
					t.Fatal(err)
				}
			}
			all, n, err := s.ReadSummaries(ctx)
			if err != nil || n != instances || len(all) != instances-1 {
				t.Fatalf("ReadSummaries returned %d summaries of %d instances, %v; want %d of %d", len(all), n, err, instances-1, instances)
			}
			for _, found := range all {
				if found.Text != "a\n\x00b 1 2\n"+found.Instance {
					t.Errorf("%q has the text %q; want its own", found.Instance, found.Text)
				}
			}
			if err := s.WriteSummary(ctx, "i00", "short", time.Millisecond); err != nil {
				t.Fatal(err)
			}
			eventually.True(t, "a summary expires", func() bool {
				all, _, err = s.ReadSummaries(ctx)
				return err == nil && len(all) == instances-2
			})
			for i := range 2 * redisstore.MaxSummaries {
				name := fmt.Sprintf("j%03d", i)
				if _, err := s.Heartbeat(ctx, name, 2*time.Hour+time.Duration(i)*time.Second); err != nil {
					t.Fatal(err)
				}
				if err := s.WriteSummary(ctx, name, name, time.Hour); err != nil {
					t.Fatal(err)
				}
			}
			wantInstances := instances + 2*redisstore.MaxSummaries
			if all, n, err = s.ReadSummaries(ctx); err != nil || len(all) != redisstore.MaxSummaries || n != wantInstances {
				t.Errorf("ReadSummaries returned %d summaries of %d instances, %v; want %d of %d", len(all), n, err, redisstore.MaxSummaries, wantInstances)
			}
		})
	}
}

func TestForeignDataIsNoSummary(t *testing.T) {
	t.Parallel()
	server, prefix := redistest.Start(t), newPrefix()
	s := open(t, server.URL(), redisstore.Options{Prefix: prefix})
	for _, name := range []string{"a", "b"} {
		if _, err := s.Heartbeat(t.Context(), name, time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.WriteSummary(t.Context(), "a", "text", time.Hour); err != nil {
		t.Fatal(err)
	}
	must(t, server, "LPUSH", prefix+"1{%@}summary.b", "x")
	if all, n, err := s.ReadSummaries(t.Context()); err != nil || n != 2 || len(all) != 1 || all[0].Instance != "a" {
		t.Errorf("ReadSummaries returned %v of %d instances, %v; want only the summary of \"a\", of 2 instances", all, n, err)
	}
	for _, c := range []struct {
		name, text string
		life       time.Duration
	}{
		{name: "", text: "text", life: time.Hour},
		{name: strings.Repeat("i", 129), text: "text", life: time.Hour},
		{name: "a", text: strings.Repeat("x", redisstore.MaxSummary+1), life: time.Hour},
		{name: "a", text: "text", life: 0},
	} {
		if err := s.WriteSummary(t.Context(), c.name, c.text, c.life); !errors.Is(err, penstock.ErrInvalid) {
			t.Errorf("WriteSummary for the instance %.5q, %d bytes, a life of %v: %v; want an ErrInvalid", c.name, len(c.text), c.life, err)
		}
	}
}
