package main

import (
	"fmt"
	"os"
)

// keepAwake makes idle cores poll for work instead of sleeping, until end is called; cyclictest
// does the same. In a virtual machine a core takes about 40 µs to wake up, longer than a script
// takes. If client and server became idle in turn, that time would be measured.
func keepAwake() (end func()) {
	const device = "/dev/cpu_dma_latency" // Linux: for as long as it is open, no state that takes longer to leave than was written, in µs
	f, err := os.OpenFile(device, os.O_WRONLY, 0)
	if err == nil {
		_, err = f.Write(make([]byte, 4))
	}
	if err != nil {
		fmt.Printf("Idle cores may sleep and wake up late, which slows coalesced calls most: %v\n", err)
		return func() {}
	}
	fmt.Printf("Idle cores stay awake (%s).\n", device)
	return func() { _ = f.Close() }
}
