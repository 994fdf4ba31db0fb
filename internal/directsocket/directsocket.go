// Package directsocket reads and writes sockets without the scheduler's work for system calls.
//
// Before and after each ordinary system call, Go's scheduler prepares for a call that blocks. If
// the call takes more than about 20 µs, the scheduler gives the processor to another thread. But
// calls on Go's sockets never block. A write to a socket of the same machine often takes so long,
// because it includes the work of the receiver's network stack.
//
// The price: a goroutine cannot be stopped during such a call, so a garbage collection may begin
// later by the time of one call, which is less than 100 µs.
package directsocket
