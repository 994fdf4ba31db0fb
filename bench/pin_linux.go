package main

import (
	"fmt"
	"os"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

// pin makes all threads of a process run on one core.
func pin(pid, core int) {
	var cores unix.CPUSet
	cores.Set(core)
	setAffinity(pid, &cores)
}

// unpin lets all threads of a process run on every core.
func unpin(pid int) {
	var cores unix.CPUSet
	for core := range runtime.NumCPU() {
		cores.Set(core)
	}
	setAffinity(pid, &cores)
}

func setAffinity(pid int, cores *unix.CPUSet) {
	tasks, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	for _, task := range tasks {
		if tid, err := strconv.Atoi(task.Name()); err == nil {
			_ = unix.SchedSetaffinity(tid, cores) // the thread may have ended
		}
	}
}
