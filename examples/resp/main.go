// Command resp is a server for Redis clients that call CL.THROTTLE, and a client that calls it.
//
// With -addr it serves at that address until it is interrupted:
//
//	go run ./examples/resp -addr 127.0.0.1:6380
//	redis-cli -p 6380 CL.THROTTLE user:42 15 30 60
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"os/signal"

	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/resplimit"
	"github.com/redis/rueidis"
)

func main() {
	addr := flag.String("addr", "", "serve at this `address`, such as 127.0.0.1:6380, until the program is interrupted; default: end after the calls")
	flag.Parse()

	store := memstore.New(memstore.Options{}) // or a redisstore: then all copies share the limits
	server, err := resplimit.New(store, nil, resplimit.Options{AllowAnonymous: true, Parallel: 1})
	if err != nil {
		log.Fatal(err)
	}
	listener, err := net.Listen("tcp", cmp.Or(*addr, "127.0.0.1:0"))
	if err != nil {
		log.Fatal(err)
	}
	go server.Serve(listener)

	call(listener.Addr().String())
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if *addr != "" {
		<-ctx.Done()
	}
	server.Shutdown(context.Background())
}

// call sends four requests of a user. The limit of these requests is one per second, with a burst
// of three.
func call(addr string) {
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	for range 4 {
		throttle := client.B().ClThrottle().Key("user:42").MaxBurst(2).CountPerPeriod(60).Period(60).Build()
		reply, err := client.Do(context.Background(), throttle).AsIntSlice()
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("limited %d  limit %d  remaining %d  retry after %2d s  reset after %d s\n", reply[0], reply[1], reply[2], reply[3], reply[4])
	}
}
