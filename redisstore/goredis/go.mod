// A module of its own, so that only who uses go-redis requires it.
module github.com/penstock/penstock/redisstore/goredis

go 1.26.0

require (
	github.com/penstock/penstock v0.1.0
	github.com/redis/go-redis/v9 v9.23.0
)

require (
	github.com/anishathalye/porcupine v1.3.1 // indirect
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/redis/rueidis v1.0.79 // indirect
	go.uber.org/atomic v1.12.0 // indirect
	golang.org/x/sys v0.48.0 // indirect
)
