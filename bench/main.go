// The bench program compares Penstock with alternatives on this machine. Most results are ratios,
// so they hold on other machines too. It needs redis-server in the PATH, or PENSTOCK_TEST_SERVER.
//
//	go run . [-only SECTION,SECTION] [-save FILE]
//
// The sections:
//
//   - server-time: time of the Redis server per decision
//   - server-memory: memory of Redis per key
//   - bandwidth: bytes that a decision sends
//   - client: decisions per second through a client
//   - coalescing: decisions per second with and without coalescing
//   - guards: decisions per second with and without guards
//   - libraries: decisions per second of Penstock and of other libraries
//   - memstore: time and memory of decisions in this process
//   - proxy: requests per second through penstock serve
//   - latency: time of a decision for hundreds of callers, at half of the rate that they can reach
//   - services: calls per second of Envoy's rate limit service (RLS), the JSON API and CL.THROTTLE
//
// The section instructions runs only if it is named. It counts the instructions of the Redis server
// per decision with callgrind, so it needs valgrind.
//
// The program measures the cases of a section in turn, in many short windows. It compares the
// quantiles that are least affected by other programs. It keeps idle cores awake if the system
// allows that (Linux, as root). It prints the load average of the machine before and after the
// sections. With -save, it begins only at a load average of at most 1.
//
// The last lines list the goals, and which of them were met. The exit status is 1 if a goal was
// missed, and 2 after an error.
package main

import (
	"flag"
	"fmt"
	"os"
	"strings"

	"github.com/penstock/penstock/internal/testing/loadaverage"
)

func main() {
	only := flag.String("only", strings.Join(sectionNames, ","), "run these `sections`")
	bareProxyUpstream := flag.String("bare-proxy", "", "only run a plain proxy in front of this upstream `URL`; the proxy section starts it to compare it with penstock serve")
	save := flag.String("save", "", "write the tables of the sections that run to this `file`, as JSON; its other sections stay; needs an idle machine")
	flag.Parse()
	if *bareProxyUpstream != "" {
		fmt.Fprintln(os.Stderr, "bench:", serveBareProxy(*bareProxyUpstream))
		os.Exit(2)
	}
	measurement, err := loadaverage.Begin(os.Stdout, *save)
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(2)
	}
	defer keepAwake()()
	r := report{saved: make(map[string][]savedTable)}
	for _, name := range strings.Split(*only, ",") {
		section, ok := sections[name]
		if !ok {
			fmt.Fprintf(os.Stderr, "bench: unknown section %q; the sections are %s\n", name, strings.Join(sectionNames, ", "))
			os.Exit(2)
		}
		r.section = name
		if err := section(&r); err != nil {
			fmt.Fprintf(os.Stderr, "bench: %s: %v\n", name, err)
			os.Exit(2)
		}
		r.flush()
	}
	loads := measurement.End()
	if *save != "" {
		if err := r.save(*save, loads); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			os.Exit(2)
		}
	}
	if !r.printGoals() {
		os.Exit(1)
	}
}

// sectionNames are in the order in which the sections run. The last two pin this process to a core.
var sectionNames = []string{"server-time", "server-memory", "bandwidth", "client", "coalescing", "guards", "libraries", "memstore", "proxy", "latency", "services"}

var sections = map[string]func(*report) error{
	"server-time":   serverTimeSection,
	"instructions":  instructionsSection, // runs only if it is named: make instructions
	"server-memory": serverMemorySection,
	"bandwidth":     bandwidthSection,
	"client":        clientSection,
	"coalescing":    coalescingSection,
	"guards":        guardsSection,
	"libraries":     librariesSection,
	"latency":       latencySection,
	"memstore":      memstoreSection,
	"proxy":         proxySection,
	"services":      servicesSection,
}
