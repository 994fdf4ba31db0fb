//go:build unix

package redistest

import "syscall"

const stopSignal, continueSignal = syscall.SIGSTOP, syscall.SIGCONT
