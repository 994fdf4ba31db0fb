package main

import (
	"fmt"
	"os"
)

// keepAwake makes idle cores poll for work instead of sleeping, until end is called. (The program
// cyclictest does this too.) In a virtual machine a core takes about 40 µs to wake up, which is
// longer than a script. A benchmark whose client and server become idle in turn would measure that
// time.
func keepAwake() (end func()) {
	// On Linux, a program writes to this device how many µs a core may take to wake up. The setting
	// holds while the device is open.
	const device = "/dev/cpu_dma_latency"
	f, err := os.OpenFile(device, os.O_WRONLY, 0)
	if err == nil {
		_, err = f.Write(make([]byte, 4)) // 0 µs
	}
	if err != nil {
		fmt.Printf("Idle cores may sleep and wake up late, which slows coalesced calls most: %v\n", err)
		return func() {}
	}
	fmt.Printf("Idle cores stay awake (%s).\n", device)
	return func() { _ = f.Close() }
}
