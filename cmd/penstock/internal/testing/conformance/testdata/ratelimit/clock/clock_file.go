// Package utils is a package of envoyproxy/ratelimit. This file gives it a clock that can be set.
package utils

import (
	"os"
	"strconv"
	"time"
)

// secondOf returns the second in the file CLOCK_FILE, or the system's second if there is no file.
func secondOf(system time.Time) int64 {
	text, err := os.ReadFile(os.Getenv("CLOCK_FILE"))
	if err != nil {
		return system.Unix()
	}
	second, err := strconv.ParseInt(string(text), 10, 64)
	if err != nil {
		panic("read the second in CLOCK_FILE: " + err.Error())
	}
	return second
}
