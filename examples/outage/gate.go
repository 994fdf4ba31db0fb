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

// A gate is a process of penstock serve.
type gate struct {
	listen, admin string
	process       *exec.Cmd
	read          sync.WaitGroup // the log

	mu    sync.Mutex
	lines []line
}

// A line of a gate's log.
type line struct {
	Level, Msg    string
	Listen, Admin string // where it listens
	Critical      bool
	Requests      int64
	text          string
}

// startGate starts a gate that knows of one more, and returns when it accepts requests.
func startGate(binary, store string) (*gate, error) {
	g := &gate{process: exec.Command(binary, "serve", "--demo", "--config", demo.File("outage/outage.yaml"), "--store", store,
		"--store-timeout", deadline.String(), "--instances", strconv.Itoa(gates), "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--log-format", "json")}
	log, err := g.process.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := g.process.Start(); err != nil {
		return nil, err
	}
	opened := make(chan line, 1)
	g.read.Go(func() {
		defer close(opened)
		for lines := bufio.NewScanner(log); lines.Scan(); {
			l := line{text: lines.Text()}
			if err := json.Unmarshal(lines.Bytes(), &l); err == nil && l.Msg == "the gate is open" {
				opened <- l
			}
			g.mu.Lock()
			g.lines = append(g.lines, l)
			g.mu.Unlock()
		}
	})
	select {
	case l, ok := <-opened:
		if !ok {
			g.stop()
			return nil, fmt.Errorf("the gate has ended:\n%s", g.log(func(line) bool { return true }))
		}
		g.listen, g.admin = l.Listen, l.Admin
		return g, nil
	case <-time.After(20 * time.Second):
		g.stop()
		return nil, errors.New("the gate does not open")
	}
}

// stop has the gate drain, and waits for its end.
func (g *gate) stop() {
	_ = g.process.Process.Signal(os.Interrupt)
	kill := time.AfterFunc(20*time.Second, func() { _ = g.process.Process.Kill() })
	defer kill.Stop()
	g.read.Wait()
	_ = g.process.Wait()
}

// log is what the gate has logged, of some lines.
func (g *gate) log(of func(line) bool) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	var s strings.Builder
	for _, l := range g.lines {
		if of(l) {
			fmt.Fprintln(&s, l.text)
		}
	}
	return s.String()
}

// measures are what one gate, or all, have counted since they began.
type measures struct {
	sources map[string]int64  // decisions, by who made them
	within  map[float64]int64 // decisions, by how many seconds they took at most
}

// measure asks gates for their metrics.
func measure(all []*gate) (measures, error) {
	m := measures{make(map[string]int64), make(map[float64]int64)}
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

func (m measures) add(page string) error {
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
		most, err := strconv.ParseFloat(label(labels, "le"), 64)
		if err != nil {
			return fmt.Errorf("%s: %w", line, err)
		}
		m.within[most] += int64(n)
	}
	return nil
}

// label is the value of one label of a series.
func label(labels, name string) string {
	for pair := range strings.SplitSeq(labels, ",") {
		if value, ok := strings.CutPrefix(pair, name+"="); ok {
			return strings.Trim(value, `"`)
		}
	}
	return ""
}

// since is what was counted after an earlier measure.
func (m measures) since(before measures) measures {
	d := measures{make(map[string]int64), make(map[float64]int64)}
	for source, n := range m.sources {
		d.sources[source] = n - before.sources[source]
	}
	for most, n := range m.within {
		d.within[most] = n - before.within[most]
	}
	return d
}
