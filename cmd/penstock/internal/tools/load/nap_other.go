//go:build !linux

package load

import "time"

const napLength = 0 // timers are exact enough

func nap(time.Duration) {}
