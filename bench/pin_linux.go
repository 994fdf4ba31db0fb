package main

import (
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// pin makes all threads of a process run on one core.
func pin(pid, core int) {
	var cores unix.CPUSet
	cores.Set(core)
	tasks, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	for _, task := range tasks {
		if tid, err := strconv.Atoi(task.Name()); err == nil {
			_ = unix.SchedSetaffinity(tid, &cores) // the thread may have ended
		}
	}
}
