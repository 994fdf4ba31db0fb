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
//   - memstore: decisions in memory
//   - proxy: requests through penstock serve
//   - services: Envoy's rate limit service (RLS), the JSON API and CL.THROTTLE
//
// The program measures the cases of a section in turn, in many short windows. It compares the
// quantiles that are least affected by other programs. It keeps idle cores awake if the system
// allows that (Linux, as root). The last lines list the goals, and which of them were met. The exit
// status is 1 if a goal was missed.
package main

import (
	"flag"
	"fmt"
	"os"
	"strings"
)

func main() {
	only := flag.String("only", strings.Join(order, ","), "which sections to run")
	bare := flag.String("bare-proxy", "", "run a plain proxy in front of this upstream; the proxy section starts it and compares it with penstock serve")
	bareServer := flag.String("bare", "", "run this server with constant responses; the services section starts it")
	save := flag.String("save", "", "write the tables of these sections to this `file`, as JSON; other sections in it stay")
	flag.Parse()
	if *bareServer != "" {
		fmt.Fprintln(os.Stderr, "bench:", serveBare(*bareServer))
		os.Exit(2)
	}
	if *bare != "" {
		fmt.Fprintln(os.Stderr, "bench:", bareProxy(*bare))
		os.Exit(2)
	}
	defer keepAwake()()
	r := report{saved: make(map[string][]savedTable)}
	for _, name := range strings.Split(*only, ",") {
		section, ok := sections[name]
		if !ok {
			fmt.Fprintf(os.Stderr, "bench: unknown section %q; the sections are %s\n", name, strings.Join(order, ", "))
			os.Exit(2)
		}
		r.section = name
		if err := section(&r); err != nil {
			fmt.Fprintf(os.Stderr, "bench: %s: %v\n", name, err)
			os.Exit(2)
		}
		r.flush()
	}
	if *save != "" {
		if err := r.save(*save); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			os.Exit(2)
		}
	}
	if !r.printGoals() {
		os.Exit(1)
	}
}

var order = []string{"server-time", "server-memory", "bandwidth", "client", "coalescing", "guards", "libraries", "memstore", "proxy", "services"}

var sections = map[string]func(*report) error{
	"server-time":   serverTimeSection,
	"server-memory": serverMemorySection,
	"bandwidth":     bandwidthSection,
	"client":        clientSection,
	"coalescing":    coalescingSection,
	"guards":        guardsSection,
	"libraries":     librariesSection,
	"memstore":      memstoreSection,
	"proxy":         proxySection,
	"services":      servicesSection,
}
