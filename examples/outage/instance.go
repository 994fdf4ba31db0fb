package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/penstock/penstock/examples/internal/demo"
)

// An instance is a process of penstock serve.
type instance struct {
	listen, admin string
	process       *exec.Cmd
	read          sync.WaitGroup // goroutine that reads the log

	mu    sync.Mutex
	lines []line
}

// A line is a line of an instance's log.
type line struct {
	Level, Msg string
	Listen     string // the line "listening" has the addresses
	Admin      string `json:"admin_listen"`
	Critical   bool
	Requests   int64
	text       string
}

// startInstance starts one of two instances, and returns when it accepts requests.
func startInstance(binary, store string) (*instance, error) {
	g := &instance{process: exec.Command(binary, "serve", "--demo", "--config", demo.File("outage/outage.yaml"), "--store", store,
		"--store-timeout", deadline.String(), "--min-instances", strconv.Itoa(instances), "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--log-format", "json")}
	log, err := g.process.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := g.process.Start(); err != nil {
		return nil, err
	}
	listening := make(chan line, 1)
	g.read.Go(func() {
		defer close(listening)
		for lines := bufio.NewScanner(log); lines.Scan(); {
			l := line{text: lines.Text()}
			if err := json.Unmarshal(lines.Bytes(), &l); err == nil && l.Msg == "listening" {
				listening <- l
			}
			g.mu.Lock()
			g.lines = append(g.lines, l)
			g.mu.Unlock()
		}
	})
	select {
	case l, ok := <-listening:
		if !ok {
			g.stop()
			return nil, fmt.Errorf("the instance has ended:\n%s", g.log(func(line) bool { return true }))
		}
		g.listen, g.admin = l.Listen, l.Admin
		return g, nil
	case <-time.After(20 * time.Second):
		g.stop()
		return nil, errors.New("the instance does not listen")
	}
}

// stop drains the instance, and waits for its end.
func (g *instance) stop() {
	_ = g.process.Process.Signal(os.Interrupt)
	kill := time.AfterFunc(20*time.Second, func() { _ = g.process.Process.Kill() })
	defer kill.Stop()
	g.read.Wait()
	_ = g.process.Wait()
}

// log returns the logged lines for which filter is true.
func (g *instance) log(filter func(line) bool) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	var s strings.Builder
	for _, l := range g.lines {
		if filter(l) {
			fmt.Fprintln(&s, l.text)
		}
	}
	return s.String()
}

// counters are metrics since the start, of one instance or summed over several.
type counters struct {
	sources   map[string]int64  // decisions by source
	latencies map[float64]int64 // decisions by the upper bound of their time, in seconds
}

// readCounters reads the metrics of instances.
func readCounters(all []*instance) (counters, error) {
	m := counters{make(map[string]int64), make(map[float64]int64)}
	for _, g := range all {
		res, err := http.Get("http://" + g.admin + "/metrics")
		if err != nil {
			return m, err
		}
		page, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil {
			return m, err
		}
		if err := m.add(string(page)); err != nil {
			return m, err
		}
	}
	return m, nil
}

func (m counters) add(page string) error {
	for line := range strings.Lines(page) {
		series, value, _ := strings.Cut(strings.TrimSpace(line), "} ")
		name, labels, ok := strings.Cut(series, "{")
		if !ok || name != "rate_limiter_decisions_total" && name != "rate_limiter_latency_seconds_bucket" {
			continue
		}
		n, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return fmt.Errorf("%s: %w", line, err)
		}
		if name == "rate_limiter_decisions_total" {
			m.sources[label(labels, "source")] += int64(n)
			continue
		}
		limit, err := strconv.ParseFloat(label(labels, "le"), 64)
		if err != nil {
			return fmt.Errorf("%s: %w", line, err)
		}
		m.latencies[limit] += int64(n)
	}
	return nil
}

// label returns the value of a label of a series.
func label(labels, name string) string {
	for pair := range strings.SplitSeq(labels, ",") {
		if value, ok := strings.CutPrefix(pair, name+"="); ok {
			return strings.Trim(value, `"`)
		}
	}
	return ""
}

// since returns the increase since earlier counters.
func (m counters) since(before counters) counters {
	d := counters{make(map[string]int64), make(map[float64]int64)}
	for source, n := range m.sources {
		d.sources[source] = n - before.sources[source]
	}
	for limit, n := range m.latencies {
		d.latencies[limit] = n - before.latencies[limit]
	}
	return d
}
