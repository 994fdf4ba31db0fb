// Command outage runs two instances of penstock serve with a real Redis, under constant load, while
// Redis is killed, stopped, flushed and failed over. Second by second it prints how many requests
// the limit of each fallback (open, closed and local) lets through, and how many may pass.
//
// The command fails if more requests pass than may, or if a response has a status that the fallback
// of its limit does not give. Without -short, two more things must hold. In each second, the p99 of
// decisions is at most 100 ms above the deadline. Within a second after its return, Redis makes all
// decisions again.
package main

import (
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/penstock/penstock/examples/internal/demo"
	"github.com/penstock/penstock/internal/testing/loadaverage"
	"github.com/penstock/penstock/internal/testing/redistest"
)

func main() {
	log.SetFlags(0)
	binary := flag.String("penstock", "", "the penstock `program`; default: build it from cmd/penstock")
	short := flag.Bool("short", false, "run for half as long, and do not check times")
	save := flag.String("save", "", "write the seconds of the first experiment to this `file`, as JSON; needs an idle machine")
	flag.Parse()
	failures, err := run(*binary, *short, *save)
	if err != nil {
		log.Fatal(err)
	}
	if len(failures) > 0 {
		for _, what := range failures {
			fmt.Println("FAILED:", what)
		}
		os.Exit(1)
	}
}

// run runs all outages, and returns the failed checks.
func run(binary string, short bool, save string) (failures []string, err error) {
	dir, err := os.MkdirTemp("", "outage-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	if binary == "" {
		if binary, err = build(dir); err != nil {
			return nil, err
		}
	}
	measurement, err := loadaverage.Begin(os.Stdout, save)
	if err != nil {
		return nil, err
	}
	phase := 4 * time.Second // each outage, and the time between two
	if short {
		phase = 2 * time.Second
	}
	fmt.Printf("Two instances admit %d requests/s for each fallback, with a burst of %d. The load is %d requests/s. A decision may take %v.\n", rate, burst, requested, deadline)

	single, err := redistest.Launch()
	if err != nil {
		return nil, err
	}
	defer single.Close()
	onSingle, err := begin("one Redis", binary, single.URL(), !short)
	if err != nil {
		return nil, err
	}
	defer onSingle.end()
	time.Sleep(phase)
	onSingle.runOutage("killed", single.Kill, phase, single.Restart)
	time.Sleep(phase)
	onSingle.runOutage("stopped", single.Pause, phase, func() error { single.Resume(); return nil })
	time.Sleep(phase)
	if err := onSingle.flush(single); err != nil {
		return nil, err
	}
	time.Sleep(phase)
	onSingle.end()
	loads := measurement.End()
	if save != "" {
		onSingle.record.Record = loads
		if err := onSingle.record.save(save); err != nil {
			return nil, err
		}
	}

	sentinel, err := redistest.LaunchSentinel()
	if err != nil {
		return nil, err
	}
	defer sentinel.Close()
	withSentinel, err := begin("Redis with Sentinels", binary, "redis+sentinel://"+strings.Join(sentinel.Addrs(), ",")+"/"+redistest.MasterName, !short)
	if err != nil {
		return nil, err
	}
	defer withSentinel.end()
	time.Sleep(phase)
	withSentinel.runOutage("killed, and its replica takes over", sentinel.Primary.Kill, 0, sentinel.AwaitFailover)
	time.Sleep(phase)
	withSentinel.end()
	return append(onSingle.failures, withSentinel.failures...), errors.Join(onSingle.err, withSentinel.err)
}

func build(dir string) (string, error) {
	binary := filepath.Join(dir, "penstock")
	command := exec.Command("go", "build", "-o", binary, ".")
	command.Dir = filepath.Join(filepath.Dir(demo.File("go.mod")), "..", "cmd", "penstock")
	if output, err := command.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building penstock: %w\n%s", err, output)
	}
	return binary, nil
}
