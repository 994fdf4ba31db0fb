package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"time"

	"github.com/penstock/penstock/internal/testing/redistest"
)

// instructionGoals are the most instructions of Redis per decision, in thousands, by the name of a
// case and its keyState: what was counted on Redis 7.0 of Debian 12, and 2 % more. The load of the
// machine does not change them.
var instructionGoals = map[string][3]float64{
	"tokenbucket":   {53.5, 43.5, 38},
	"fixedwindow":   {59.5, 47, 41.5},
	"slidingwindow": {62, 52, 49.5},
	"slidinglog":    {74, 88, 88},
	"concurrency":   {110.5, 154, 105},
	threeName:       {62.5, 58.5, 49.5},
}

// instructionsSection counts the instructions of a Redis server per decision, with callgrind.
func instructionsSection(r *report) error {
	folder, err := os.MkdirTemp("", "instructions-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	if err := writeCallgrindServer(folder); err != nil {
		return err
	}
	subjects, err := redisSubjects()
	if err != nil {
		return err
	}
	r.beginTable("Thousand instructions of Redis per decision (%d decisions)", window)
	r.addRow("", "new key", "key in use", "denied")
	for _, s := range subjects {
		goals, isMeasured := instructionGoals[s.name]
		if !isMeasured && s != subjects[1] {
			continue
		}
		counts, err := countInstructions(s, folder)
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		cells := []string{s.name}
		for state, name := range []string{fresh: "new key", known: "key in use", denied: "denied"} {
			cells = append(cells, strconv.FormatFloat(counts[state], 'f', 1, 64))
			if goals[state] > 0 {
				r.atMost("instructions: "+s.name+", "+name, counts[state], goals[state])
			}
		}
		r.addRow(cells...)
	}
	return nil
}

// writeCallgrindServer writes a program redis-server that runs the real one under callgrind, and
// makes redistest start it.
func writeCallgrindServer(folder string) error {
	server, err := exec.LookPath("redis-server")
	if err != nil {
		return err
	}
	client, err := exec.LookPath("redis-cli")
	if err != nil {
		return err
	}
	if _, err := exec.LookPath("valgrind"); err != nil {
		return fmt.Errorf("%w: install the package valgrind", err)
	}
	script := fmt.Sprintf("#!/bin/sh\nexec valgrind --tool=callgrind --callgrind-out-file=%s/out %s \"$@\"\n", folder, server)
	if err := os.WriteFile(filepath.Join(folder, "redis-server"), []byte(script), 0o755); err != nil {
		return err
	}
	if err := os.Symlink(client, filepath.Join(folder, "redis-cli")); err != nil {
		return err
	}
	return os.Setenv("PENSTOCK_TEST_SERVER", filepath.Join(folder, "redis-server"))
}

// countInstructions returns the thousands of instructions per decision of a subject, by keyState.
func countInstructions(s *subject, folder string) (counts [3]float64, err error) {
	server, err := redistest.Launch()
	if err != nil {
		return counts, err
	}
	defer server.Close()
	p, err := dialPipeline(server.Socket)
	if err != nil {
		return counts, err
	}
	defer p.conn.Close()
	m := &measuredServer{server, p}
	if err := m.prepare(s); err != nil {
		return counts, err
	}
	run := func(n int, state keyState) error {
		var l load
		for i := range window {
			s.add(&l, n*window+i, state)
		}
		return p.run(&l)
	}
	// Each state is decided once before it is counted. A key in use has been charged twice, because
	// the second charge may still change the format of its state.
	for _, step := range []struct {
		n       int
		state   keyState
		counted bool
	}{{0, fresh, false}, {1, fresh, true}, {0, known, false}, {1, known, false}, {1, known, true}, {0, denied, false}, {0, denied, true}} {
		if step.counted {
			if err := control(server, "--zero"); err != nil {
				return counts, err
			}
		}
		if err := run(step.n, step.state); err != nil {
			return counts, err
		}
		if step.counted {
			if err := control(server, "--dump"); err != nil {
				return counts, err
			}
			total, err := lastTotal(folder)
			if err != nil {
				return counts, err
			}
			counts[step.state] = total / window / 1000
		}
	}
	return counts, nil
}

// control sends a command to callgrind.
func control(server *redistest.Server, command string) error {
	out, err := exec.Command("callgrind_control", command, strconv.Itoa(server.PID())).CombinedOutput()
	if err != nil {
		return fmt.Errorf("callgrind_control %s: %w: %s", command, err, out)
	}
	return nil
}

var totals = regexp.MustCompile(`(?m)^(?:totals|summary): (\d+)`)

// lastTotal returns the instructions of the newest dump, and removes all dumps.
func lastTotal(folder string) (float64, error) {
	dumps, err := filepath.Glob(filepath.Join(folder, "out*"))
	if err != nil || len(dumps) == 0 {
		return 0, fmt.Errorf("callgrind wrote no dump: %v", err)
	}
	var newest time.Time
	total := 0.0
	for _, dump := range dumps {
		info, err := os.Stat(dump)
		if err != nil {
			return 0, err
		}
		text, err := os.ReadFile(dump)
		if err != nil {
			return 0, err
		}
		if m := totals.FindSubmatch(text); m != nil && info.ModTime().After(newest) {
			newest = info.ModTime()
			total, _ = strconv.ParseFloat(string(m[1]), 64)
		}
		if err := os.Remove(dump); err != nil {
			return 0, err
		}
	}
	return total, nil
}
