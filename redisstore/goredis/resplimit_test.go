package goredis_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"

	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/resplimit"
	"github.com/redis/go-redis/v9"
)

// Programs that call redis-cell's CL.THROTTLE through go-redis can make the same calls to
// resplimit.
func TestGoRedisWorksWithResplimit(t *testing.T) {
	server, err := resplimit.New(memstore.New(memstore.Options{}), nil, resplimit.Options{
		Credentials: []resplimit.Credential{{User: "ann", Password: "secret"}, {Password: "token"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go server.Serve(l)
	ctx := context.Background()
	for i, o := range []redis.Options{{Username: "ann", Password: "secret"}, {Password: "token", Protocol: 2, ClientName: "app"}} {
		o.Addr = l.Addr().String()
		client := redis.NewClient(&o)
		defer client.Close()
		key := fmt.Sprint("user:", i)
		var calls []*redis.Cmd
		if _, err := client.Pipelined(ctx, func(p redis.Pipeliner) error {
			for range 10 {
				calls = append(calls, p.Do(ctx, "CL.THROTTLE", key, 6, 1, 86400))
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		// The arguments are a maximum burst of 6, and 1 call per 86,400 s. Such a limit admits 7 calls.
		// The first three numbers of a reply are 1 if the call is denied, the limit, and what remains.
		for j, call := range calls {
			reply, err := call.Int64Slice()
			if err != nil || len(reply) != 5 {
				t.Fatalf("the reply is %v, %v; want 5 integers", reply, err)
			}
			if limited := reply[0] == 1; limited != (j >= 7) || reply[1] != 7 || reply[2] != max(int64(6-j), 0) {
				t.Errorf("reply %d is %v; want limited %t, limit 7, %d remaining", j, reply, j >= 7, max(6-j, 0))
			}
		}
		if n, err := client.Del(ctx, key).Result(); n != 1 || err != nil {
			t.Errorf("DEL replies %d, %v; want 1", n, err)
		}
		if reply, err := client.Do(ctx, "CL.THROTTLE", key, 6, 1, 86400).Int64Slice(); err != nil || reply[0] != 0 {
			t.Errorf("after DEL the reply is %v, %v; want an admitted call", reply, err)
		}
	}
	client := redis.NewClient(&redis.Options{Addr: l.Addr().String(), Password: "wrong"})
	defer client.Close()
	if err := client.Do(ctx, "CL.THROTTLE", "a", 1, 1, 1).Err(); err == nil || errors.Is(err, redis.Nil) {
		t.Errorf("with a wrong password the error is %v; want one about the password", err)
	}
}
