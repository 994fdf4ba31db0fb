// Package resplimit is a server of limits for Redis clients. Its [Server] speaks RESP, the
// protocol of Redis, so any language with a Redis client can use it.
//
//	CL.THROTTLE user:42 15 30 60 1       a limit that comes with the call, as redis-cell has it
//	THROTTLE user:42 15 30 60 1          the same, as throttlecrab has it
//	DEL user:42                          resets what user:42 has used of these limits
//	PENSTOCK.CHECK search user:42        a rule of the policy
//
// The server also replies to the commands that clients send when they connect, such as HELLO, AUTH
// and CLIENT. It keeps no data: GET and SET are unknown commands.
//
// The page docs/resp.md lists the commands, the differences from redis-cell, and what a client gets
// when the store fails.
package resplimit
