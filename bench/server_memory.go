package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/penstock/penstock"
)

// serverMemorySection measures the memory of a live key in Redis.
func serverMemorySection(r *report) error {
	server, err := newMeasuredServer()
	if err != nil {
		return err
	}
	defer server.close()
	r.title("Server memory: bytes of Redis per live key, names of 25 bytes (used_memory over %d units of state, and what MEMORY USAGE "+
		"says of a key)", coldKeys)
	r.row("", "bytes", "/ source", "memory usage")
	subjects, err := redisSubjects()
	if err != nil {
		return err
	}
	subjects = slices.DeleteFunc(subjects, func(s *subject) bool { return s.name == threeName })
	together, err := penstockSubject(threeName, daily(false))
	if err != nil {
		return err
	}
	separate, err := penstockSubject(threeName+", separate", daily(true))
	if err != nil {
		return err
	}
	var source float64
	for _, s := range append(subjects, together, separate) {
		bytes, err := server.space(s, coldKeys)
		if err != nil {
			return err
		}
		usage, err := server.usage()
		if err != nil {
			return err
		}
		switch s {
		case subjects[0]:
			source = bytes
		case together:
			r.atMost("server-memory: bytes of three limits on one key, by MEMORY USAGE", float64(usage), 200)
		}
		r.row(s.name, strconv.Itoa(int(bytes)), number(bytes/source), strconv.FormatInt(usage, 10))
		for entries := 10; s.name == "slidinglog" && entries <= 1000; entries *= 10 { // a log has an entry for each charge
			bytes, err := server.space(s, coldKeys/entries)
			if err != nil {
				return err
			}
			r.row("  of "+strconv.Itoa(entries)+" entries", strconv.Itoa(int(bytes)), number(bytes/source))
		}
	}
	return nil
}

// usage returns the MEMORY USAGE of one of the keys that were just charged.
func (r *measuredServer) usage() (int64, error) {
	name, err := r.server.Do("RANDOMKEY")
	if err != nil {
		return 0, err
	}
	for range 1000 { // some names are hot keys
		text, ok := name.(string)
		if !ok {
			return 0, fmt.Errorf("RANDOMKEY returned no key")
		}
		if strings.Contains(text, "client:") {
			usage, err := r.server.Do("MEMORY", "USAGE", text)
			if err != nil {
				return 0, err
			}
			return usage.(int64), nil
		}
		if name, err = r.server.Do("RANDOMKEY"); err != nil {
			return 0, err
		}
	}
	return 0, fmt.Errorf("RANDOMKEY returned only hot keys")
}

// daily returns a batch of three token buckets whose state does not expire during a run. Redis has
// one string for all of them, or if isSeparate is true, one for each.
func daily(isSeparate bool) func(int64) []penstock.Limit {
	return func(count int64) []penstock.Limit {
		limits := three(count)
		for i := range limits {
			limits[i].Period = 24 * time.Hour
			if isSeparate {
				limits[i].Group = "group" + strconv.Itoa(i)
			}
		}
		return limits
	}
}

// space makes coldKeys charges in all, on a number of keys in turn. It returns the bytes per key.
func (r *measuredServer) space(s *subject, keys int) (float64, error) {
	if _, err := r.server.Do("FLUSHALL", "SYNC"); err != nil {
		return 0, err
	}
	if err := r.prepare(s); err != nil {
		return 0, err
	}
	before, err := r.server.UsedMemory() // with the hot keys
	if err != nil {
		return 0, err
	}
	var l load
	for i := range coldKeys {
		s.add(&l, i%keys, known)
	}
	if err := r.pipeline.run(&l); err != nil {
		return 0, err
	}
	time.Sleep(300 * time.Millisecond) // until Redis has resized its hash tables
	after, err := r.server.UsedMemory()
	if err != nil {
		return 0, err
	}
	return float64(after-before) / float64(keys), nil
}
