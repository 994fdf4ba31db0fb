package main

import (
	"context"
	"fmt"
	"strconv"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/redisstore"
)

// bandwidthSection counts the bytes of a decision's command. The store sends EVALSHA. EVAL is for
// comparison: it has the text of the script each time.
func bandwidthSection(r *report) error {
	r.beginTable("Bandwidth: bytes that a decision sends to Redis, with keys of 22 bytes")
	r.addRow("", "by EVALSHA", "by EVAL", "factor", "MB/s saved at 10,000/s")
	for _, limit := range []penstock.Limit{
		penstock.PerSecond(10), penstock.PerSecond(10).With(penstock.LeakyBucket), penstock.PerSecond(10).With(penstock.FixedWindow),
		penstock.PerSecond(10).With(penstock.SlidingWindow), penstock.PerSecond(10).With(penstock.SlidingLog),
	} {
		bySHA, byText, err := bytesOf(limit)
		if err != nil {
			return err
		}
		name := limit.MustCompile().Algorithm().Title()
		saved := float64(byText-bySHA) * 10_000 / 1e6 // MB/s at 10,000 decisions per second
		r.addRow(name, strconv.Itoa(bySHA), strconv.Itoa(byText), number(float64(byText)/float64(bySHA)), number(saved))
		r.atMost("bandwidth: bytes of a decision of "+name+" by EVALSHA", float64(bySHA), 250)
	}
	return nil
}

// bytesOf returns the bytes of one decision's command, by EVALSHA and by EVAL.
func bytesOf(limit penstock.Limit) (bySHA, byText int, err error) {
	commands := &recorder{load: new(load), scripts: make(map[string]string)}
	store, err := redisstore.New(commands, redisstore.Options{})
	if err != nil {
		return 0, 0, err
	}
	defer store.Close()
	l, err := penstock.NewLimiter(store, "api", limit)
	if err != nil {
		return 0, 0, err
	}
	charges := []penstock.Charge{{Key: "client:0123456", Plan: l.Plans()[0], Cost: 1}} // ps1{client:0123456}api has 22 bytes
	_, _ = store.Decide(context.Background(), charges)                                 // the recorder has no reply
	if len(commands.scripts) != 1 || len(commands.load.bytes) == 0 {
		return 0, 0, fmt.Errorf("the store sent %d scripts and %d bytes; want one script", len(commands.scripts), len(commands.load.bytes))
	}
	for digest, text := range commands.scripts {
		bySHA = len(commands.load.bytes)
		byText = bySHA - len("SHA") - len(digest) + len(text)
	}
	return bySHA, byText, nil
}
