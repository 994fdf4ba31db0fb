package main

import (
	"fmt"
	"os"
)

// keepAwake makes idle cores poll for work instead of sleeping, until end is called; cyclictest
// does the same. In a virtual machine a core takes some 40 µs to wake up, longer than a script
// takes. A load in which both sides become idle in turn would measure that.
func keepAwake() (end func()) {
	const device = "/dev/cpu_dma_latency" // Linux: for as long as it is open, no state that takes longer to leave than was written, in µs
	f, err := os.OpenFile(device, os.O_WRONLY, 0)
	if err == nil {
		_, err = f.Write(make([]byte, 4))
	}
	if err != nil {
		fmt.Printf("Idle cores may sleep, and wake late, which harms those most who wait together: %v\n", err)
		return func() {}
	}
	fmt.Printf("Idle cores stay awake (%s).\n", device)
	return func() { _ = f.Close() }
}
