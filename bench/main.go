// The bench program compares Penstock with what it replaces, on this machine, in ratios that hold
// on any machine. It measures the server's work per decision, memory per key, decisions per second
// through a client, the effects of coalescing and of guards, other libraries, decisions in memory,
// and requests through the service. It needs redis-server in the PATH, or PENSTOCK_TEST_SERVER.
//
//	go run . [-only redis,space,client,gather,guards,peers,memory,proxy]
//
// Cases are measured in turn, in many short windows, and compared by the quantile that other
// programs disturb least. Idle cores are kept awake if the system allows it (Linux, as root). The
// last lines list the goals and whether they were met. The exit status is 1 if one was missed.
package main

import (
	"flag"
	"fmt"
	"os"
	"strings"
)

func main() {
	only := flag.String("only", strings.Join(order, ","), "which sections to run")
	bare := flag.String("bare-proxy", "", "be the proxy that the service is compared with, to this upstream; the proxy section runs it")
	flag.Parse()
	if *bare != "" {
		fmt.Fprintln(os.Stderr, "bench:", bareProxy(*bare))
		os.Exit(2)
	}
	defer keepAwake()()
	var r report
	for _, name := range strings.Split(*only, ",") {
		section, ok := sections[name]
		if !ok {
			fmt.Fprintf(os.Stderr, "bench: unknown section %q; the sections are %s\n", name, strings.Join(order, ", "))
			os.Exit(2)
		}
		if err := section(&r); err != nil {
			fmt.Fprintf(os.Stderr, "bench: %s: %v\n", name, err)
			os.Exit(2)
		}
	}
	if !r.goals() {
		os.Exit(1)
	}
}

var order = []string{"redis", "space", "client", "gather", "guards", "peers", "memory", "proxy"}

var sections = map[string]func(*report) error{
	"redis":  redisSection,
	"space":  spaceSection,
	"client": clientSection,
	"gather": gatherSection,
	"guards": guardsSection,
	"peers":  peersSection,
	"memory": memorySection,
	"proxy":  proxySection,
}
