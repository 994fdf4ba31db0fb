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
	r.beginTable("Server memory: bytes of Redis per live key, with names of 25 bytes (bytes: growth of used_memory by %d keys; memory usage: "+
		"what MEMORY USAGE returns for one key)", coldKeys)
	r.addRow("", "bytes", "/ source", "memory usage")
	subjects, err := redisSubjects()
	if err != nil {
		return err
	}
	subjects = slices.DeleteFunc(subjects, func(s *subject) bool { return s.name == threeName })
	together, err := penstockSubject(threeName, daily)
	if err != nil {
		return err
	}
	separate, err := penstockSubject(threeName+", separate", dailySeparate)
	if err != nil {
		return err
	}
	var source float64
	for _, s := range append(subjects, together, separate) {
		bytes, err := server.bytesPerKey(s, coldKeys)
		if err != nil {
			return err
		}
		usage, err := server.memoryUsage()
		if err != nil {
			return err
		}
		switch s {
		case subjects[0]:
			source = bytes
		case together:
			r.atMost("server-memory: bytes of three limits on one key, by MEMORY USAGE", float64(usage), 200)
		}
		r.addRow(s.name, strconv.Itoa(int(bytes)), number(bytes/source), strconv.FormatInt(usage, 10))
		if s.name != "slidinglog" {
			continue
		}
		for _, entries := range []int{10, 100, 1000} { // a log has an entry for each charge
			bytes, err := server.bytesPerKey(s, coldKeys/entries)
			if err != nil {
				return err
			}
			r.addRow("  of "+strconv.Itoa(entries)+" entries", strconv.Itoa(int(bytes)), number(bytes/source))
		}
	}
	return nil
}

// memoryUsage returns what MEMORY USAGE returns for one of the cold keys.
func (r *measuredServer) memoryUsage() (int64, error) {
	name, err := r.server.Do("RANDOMKEY")
	if err != nil {
		return 0, err
	}
	for range 1000 { // tries: some names are those of hot keys
		text, ok := name.(string)
		if !ok {
			return 0, fmt.Errorf("RANDOMKEY returned %v; want the name of a key", name)
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

// daily returns three token buckets, whose state does not expire during a run. Redis has one string
// for all of them.
func daily(count int64) []penstock.Limit {
	limits := three(count)
	for i := range limits {
		limits[i].Period = 24 * time.Hour
	}
	return limits
}

// dailySeparate returns the limits of daily in separate groups, so Redis has a string for each.
func dailySeparate(count int64) []penstock.Limit {
	limits := daily(count)
	for i := range limits {
		limits[i].Group = "group" + strconv.Itoa(i)
	}
	return limits
}

// bytesPerKey charges the given number of cold keys in turn, until it has made coldKeys charges. It
// returns the memory that a key then takes.
func (r *measuredServer) bytesPerKey(s *subject, keys int) (float64, error) {
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
