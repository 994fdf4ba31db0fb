// Command composed writes the scripts that package redisstore composes into a folder, for luacheck to read: one for each
// algorithm, alone and in a batch of two, and one for all of them together.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/redisstore"
)

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: composed FOLDER")
	}
	if err := write(os.Args[1]); err != nil {
		log.Fatal(err)
	}
}

func write(dir string) error {
	limits := []penstock.Limit{
		penstock.PerSecond(1).WithName("tokenbucket"),
		penstock.PerSecond(1).With(penstock.LeakyBucket).WithName("leakybucket"),
		penstock.PerSecond(1).With(penstock.FixedWindow).WithName("fixedwindow"),
		penstock.PerSecond(1).With(penstock.SlidingWindow).WithName("slidingwindow"),
		penstock.PerSecond(1).With(penstock.SubWindow(10)).WithName("subwindow"),
		penstock.PerSecond(1).With(penstock.SlidingLog).WithName("slidinglog"),
		penstock.InFlight(1, time.Second).WithName("concurrency"),
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	var all []penstock.Charge
	for _, limit := range limits {
		limit.Group = "g"
		charge := penstock.Charge{Limit: limit, Cost: 1, Holder: "h"}
		twin := charge
		twin.Limit = limit.WithName("twin")
		all = append(all, charge)
		name := filepath.Join(dir, limit.Name)
		if err := compose(name+".lua", charge); err != nil {
			return err
		}
		if err := compose(name+"-twice.lua", charge, twin); err != nil {
			return err
		}
	}
	return compose(filepath.Join(dir, "all.lua"), all...)
}

// compose writes the script that decides the charges.
func compose(file string, charges ...penstock.Charge) error {
	var r recorder
	store, err := redisstore.New(&r, redisstore.Options{})
	if err != nil {
		return err
	}
	_, _ = store.Decide(context.Background(), charges) // fails: a recorder decides nothing
	if r.script == "" {
		return fmt.Errorf("%s: no script was sent", file)
	}
	return os.WriteFile(file, []byte(r.script), 0o644)
}

// A recorder is a server that knows no script and notes the last that it was sent.
type recorder struct{ script string }

func (r *recorder) EvalSha(context.Context, string, []string, []string) (string, error) {
	return "", redisstore.ReplyError("NOSCRIPT")
}

func (r *recorder) Eval(_ context.Context, script string, _, _ []string) (string, error) {
	r.script = script
	return "", redisstore.ReplyError("ERR recorded")
}

func (r *recorder) Sharded(context.Context) (bool, error) { return false, nil }

func (r *recorder) Ping(context.Context) error { return nil }

func (r *recorder) Close() error { return nil }
