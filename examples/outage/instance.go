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
	reader        sync.WaitGroup // the goroutine that reads the log

	mu    sync.Mutex
	lines []line
}

// A line is a line of an instance's log.
type line struct {
	Level, Msg string
	Listen     string // only in the line "listening", as Admin
	Admin      string `json:"admin_listen"`
	Critical   bool   // requests pass without limits
	text       string // the whole line
}

// startInstance starts one of two instances, and returns when it accepts requests.
func startInstance(binary, store string) (*instance, error) {
	i := &instance{process: exec.Command(binary, "serve", "--demo", "--config", demo.File("outage/outage.yaml"), "--store", store,
		"--store-timeout", deadline.String(), "--min-instances", strconv.Itoa(instances), "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--log-format", "json")}
	log, err := i.process.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := i.process.Start(); err != nil {
		return nil, err
	}
	listening := make(chan line, 1)
	i.reader.Go(func() {
		defer close(listening)
		for lines := bufio.NewScanner(log); lines.Scan(); {
			l := line{text: lines.Text()}
			if err := json.Unmarshal(lines.Bytes(), &l); err == nil && l.Msg == "listening" {
				listening <- l
			}
			i.mu.Lock()
			i.lines = append(i.lines, l)
			i.mu.Unlock()
		}
	})
	select {
	case l, ok := <-listening:
		if !ok {
			i.stop()
			return nil, fmt.Errorf("the instance has ended:\n%s", i.log(func(line) bool { return true }))
		}
		i.listen, i.admin = l.Listen, l.Admin
		return i, nil
	case <-time.After(20 * time.Second):
		i.stop()
		return nil, errors.New("the instance does not listen after 20 s")
	}
}

// stop drains the instance, and waits for its end.
func (i *instance) stop() {
	_ = i.process.Process.Signal(os.Interrupt)
	kill := time.AfterFunc(20*time.Second, func() { _ = i.process.Process.Kill() })
	defer kill.Stop()
	i.reader.Wait()
	_ = i.process.Wait()
}

// log returns the logged lines for which filter is true.
func (i *instance) log(filter func(line) bool) string {
	i.mu.Lock()
	defer i.mu.Unlock()
	var s strings.Builder
	for _, l := range i.lines {
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
	c := counters{make(map[string]int64), make(map[float64]int64)}
	for _, one := range all {
		res, err := http.Get("http://" + one.admin + "/metrics")
		if err != nil {
			return c, err
		}
		page, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil {
			return c, err
		}
		if err := c.add(string(page)); err != nil {
			return c, err
		}
	}
	return c, nil
}

// add adds the metrics of a page of /metrics.
func (c counters) add(page string) error {
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
			c.sources[label(labels, "source")] += int64(n)
			continue
		}
		limit, err := strconv.ParseFloat(label(labels, "le"), 64)
		if err != nil {
			return fmt.Errorf("%s: %w", line, err)
		}
		c.latencies[limit] += int64(n)
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

// since returns how much the counters have increased.
func (c counters) since(before counters) counters {
	increase := counters{make(map[string]int64), make(map[float64]int64)}
	for source, n := range c.sources {
		increase.sources[source] = n - before.sources[source]
	}
	for limit, n := range c.latencies {
		increase.latencies[limit] = n - before.latencies[limit]
	}
	return increase
}
