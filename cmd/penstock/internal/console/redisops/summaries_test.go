package redisops_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/cmd/penstock/internal/console/redisops"
	"github.com/penstock/penstock/internal/testing/clienttest"
	"github.com/penstock/penstock/internal/testing/eventually"
	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/redisstore"
)

func TestSummariesAreReadWhileTheirInstancesLive(t *testing.T) {
	t.Parallel()
	cluster := redistest.SharedCluster(t)
	for name, url := range map[string]string{"single": redistest.Start(t).URL(), "cluster": "redis+cluster://" + strings.Join(cluster.Addrs(), ",")} {
		t.Run(name, func(t *testing.T) {
			ctx, prefix := context.Background(), clienttest.NewPrefix()
			s := clienttest.OpenStore(t, url, redisstore.Options{Prefix: prefix})
			const instances = 45
			for i := range instances {
				name := fmt.Sprintf("i%02d", i)
				if _, err := s.Heartbeat(ctx, name, time.Hour+time.Duration(i)*time.Second); err != nil {
					t.Fatal(err)
				}
				if i == 7 {
					continue // it has no summary yet
				}
				if err := redisops.WriteSummary(ctx, s, name, "a\n\x00b 1 2\n"+name, time.Hour); err != nil {
					t.Fatal(err)
				}
			}
			all, n, err := redisops.ReadSummaries(ctx, s)
			if err != nil || n != instances || len(all) != instances-1 {
				t.Fatalf("ReadSummaries returned %d summaries of %d instances, %v; want %d of %d", len(all), n, err, instances-1, instances)
			}
			for _, found := range all {
				if found.Text != "a\n\x00b 1 2\n"+found.Instance {
					t.Errorf("%q has the text %q; want its own", found.Instance, found.Text)
				}
			}
			if err := redisops.WriteSummary(ctx, s, "i00", "short", time.Millisecond); err != nil {
				t.Fatal(err)
			}
			eventually.True(t, "a summary expires", func() bool {
				all, _, err = redisops.ReadSummaries(ctx, s)
				return err == nil && len(all) == instances-2
			})
			for i := range 2 * redisops.MaxSummaries {
				name := fmt.Sprintf("j%03d", i)
				if _, err := s.Heartbeat(ctx, name, 2*time.Hour+time.Duration(i)*time.Second); err != nil {
					t.Fatal(err)
				}
				if err := redisops.WriteSummary(ctx, s, name, name, time.Hour); err != nil {
					t.Fatal(err)
				}
			}
			wantInstances := instances + 2*redisops.MaxSummaries
			if all, n, err = redisops.ReadSummaries(ctx, s); err != nil || len(all) != redisops.MaxSummaries || n != wantInstances {
				t.Errorf("ReadSummaries returned %d summaries of %d instances, %v; want %d of %d", len(all), n, err, redisops.MaxSummaries, wantInstances)
			}
		})
	}
}

func TestForeignDataIsNoSummary(t *testing.T) {
	t.Parallel()
	server, prefix := redistest.Start(t), clienttest.NewPrefix()
	s := clienttest.OpenStore(t, server.URL(), redisstore.Options{Prefix: prefix})
	for _, name := range []string{"a", "b"} {
		if _, err := s.Heartbeat(t.Context(), name, time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	if err := redisops.WriteSummary(t.Context(), s, "a", "text", time.Hour); err != nil {
		t.Fatal(err)
	}
	clienttest.Must(t, server, "LPUSH", prefix+"1{%@}summary.b", "x")
	if _, err := s.Heartbeat(t.Context(), "c", time.Hour); err != nil {
		t.Fatal(err)
	}
	clienttest.Must(t, server, "SETRANGE", prefix+"1{%@}summary.c", strconv.Itoa(17<<20), "x") // longer than any reply may be
	if all, n, err := redisops.ReadSummaries(t.Context(), s); err != nil || n != 3 || len(all) != 1 || all[0].Instance != "a" {
		t.Errorf("ReadSummaries returned %d summaries of %d instances, %v; want only the summary of \"a\", of 3 instances", len(all), n, err)
	}
	for _, c := range []struct {
		text string
		life time.Duration
	}{{strings.Repeat("x", redisops.MaxSummary+1), time.Hour}, {"text", 0}} {
		if err := redisops.WriteSummary(t.Context(), s, "a", c.text, c.life); !errors.Is(err, penstock.ErrInvalid) {
			t.Errorf("WriteSummary of %d bytes, with a life of %v: %v; want an ErrInvalid", len(c.text), c.life, err)
		}
	}
}
