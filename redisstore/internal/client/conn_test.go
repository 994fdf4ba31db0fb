package client

import (
	"context"
	"crypto/tls"
	"net"
	"testing"
	"testing/synctest"

	"github.com/redis/rueidis"
)

// Close of the client ends reads of a connection on which nothing was written yet, and also ends
// dialing.
func TestConnectionsEndWithTheClientWhileTheyAreBeingOpened(t *testing.T) {
	for _, isDialed := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			life, end := context.WithCancel(t.Context())
			here, there := net.Pipe()
			defer there.Close()
			option := rueidis.ClientOption{DialCtxFn: func(ctx context.Context, _ string, _ *net.Dialer, _ *tls.Config) (net.Conn, error) {
				if isDialed {
					return here, nil
				}
				<-ctx.Done()
				return nil, ctx.Err()
			}}
			guardConnections(&option, life)
			ended := make(chan error, 1)
			go func() {
				conn, err := option.DialCtxFn(t.Context(), "", nil, nil)
				if err == nil {
					_, err = conn.Read(make([]byte, 1))
				}
				ended <- err
			}()
			synctest.Wait()
			select {
			case err := <-ended:
				t.Fatalf("dialed %v: before the client was closed, the call ended with %v; want that it waits", isDialed, err)
			default:
			}
			end()
			synctest.Wait()
			select {
			case err := <-ended:
				if err == nil {
					t.Errorf("dialed %v: the read returned data; want an error", isDialed)
				}
			default:
				t.Errorf("dialed %v: after the client was closed, the call still runs; want an error", isDialed)
				here.Close()
			}
		})
	}
}
