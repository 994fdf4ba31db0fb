// Package directsocket reads and writes sockets without the scheduler's work for system calls.
//
// Around each ordinary system call, Go's scheduler does work for the case that the call blocks. If
// the call takes more than about 20 µs, the scheduler gives the processor to another thread. Calls
// on Go's sockets never block. But a write to a socket of the same machine often takes more than 20
// µs, because it includes the work of the receiver's network stack.
//
// The price: a goroutine cannot be stopped during such a call. So a garbage collection may have to
// wait for the end of a call, which takes less than 100 µs.
package directsocket
