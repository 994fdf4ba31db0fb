// Command outage runs two gates of penstock serve on a real Redis, under steady load, while Redis
// is killed, stopped, flushed and failed over. It prints what each policy for such times lets
// through, second by second, beside what it may.
//
// It fails if more passes than may, or if a request gets an answer that its policy does not give.
// Without -short it fails too if the p99 of decisions, as the gates measure it, is above the
// deadline and 100 ms in any second, or if decisions are not Redis' own again within a second of
// its return.
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
	"github.com/penstock/penstock/internal/redistest"
)

func main() {
	log.SetFlags(0)
	binary := flag.String("penstock", "", "the `program` to run; default: built from cmd/penstock")
	short := flag.Bool("short", false, "run for half as long, and report times without judging them")
	flag.Parse()
	wrong, err := run(*binary, *short)
	if err != nil {
		log.Fatal(err)
	}
	if len(wrong) > 0 {
		for _, what := range wrong {
			fmt.Println("not as it should be:", what)
		}
		os.Exit(1)
	}
}

// run shows all outages, and tells what was wrong.
func run(binary string, short bool) (wrong []string, err error) {
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
	calm := 4 * time.Second
	if short {
		calm = 2 * time.Second
	}
	fmt.Printf("Two gates let %d/s of each policy through, and a burst of %d; %d/s are asked for. A decision may take %v.\n", rate, burst, asked, deadline)

	single, err := redistest.Launch()
	if err != nil {
		return nil, err
	}
	defer single.Close()
	first, err := begin("one Redis", binary, single.URL(), !short)
	if err != nil {
		return nil, err
	}
	defer first.end()
	first.pause(calm)
	first.outage("killed", single.Kill, calm, single.Restart)
	first.pause(calm)
	first.outage("stopped", single.Pause, calm, func() error { single.Resume(); return nil })
	first.pause(calm)
	if err := first.flush(single); err != nil {
		return nil, err
	}
	first.pause(calm)
	first.end()

	sentinel, err := redistest.LaunchSentinel()
	if err != nil {
		return nil, err
	}
	defer sentinel.Close()
	second, err := begin("Redis with Sentinels", binary, "redis+sentinel://"+strings.Join(sentinel.Addrs(), ",")+"/"+redistest.MasterName, !short)
	if err != nil {
		return nil, err
	}
	defer second.end()
	second.pause(calm)
	second.outage("killed, and its replica takes over", sentinel.Primary.Kill, 0, func() error { return promoted(sentinel) })
	second.pause(calm)
	second.end()
	return append(first.wrong, second.wrong...), errors.Join(first.err, second.err)
}

// promoted waits until all Sentinels name the replica as the primary.
func promoted(s *redistest.Sentinel) error {
	named := 0
	for end := time.Now().Add(15 * time.Second); named < len(s.Sentinels); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			return errors.New("the replica has not taken over")
		}
		address, err := s.Sentinels[named].Do("SENTINEL", "GET-MASTER-ADDR-BY-NAME", redistest.MasterName)
		if pair, ok := address.([]any); err == nil && ok && len(pair) == 2 && fmt.Sprint(pair[0], ":", pair[1]) == s.Replica.Addr {
			named++
		}
	}
	return nil
}

func build(dir string) (string, error) {
	binary := filepath.Join(dir, "penstock")
	command := exec.Command("go", "build", "-o", binary, ".")
	command.Dir = filepath.Join(filepath.Dir(demo.File("go.mod")), "..", "cmd", "penstock")
	if said, err := command.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building penstock: %w\n%s", err, said)
	}
	return binary, nil
}
