package redisclient

import (
	"context"
	"crypto/tls"
	"net"
	"testing"
	"testing/synctest"

	"github.com/redis/rueidis"
)

// Closing the client ends a dial that hangs. Closing also ends the first read of a connection,
// which may hang before anything was written.
func TestConnectionsEndWithTheClientWhileTheyAreBeingOpened(t *testing.T) {
	for _, canDial := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			life, end := context.WithCancel(t.Context())
			clientEnd, serverEnd := net.Pipe()
			defer serverEnd.Close()
			option := rueidis.ClientOption{DialCtxFn: func(ctx context.Context, _ string, _ *net.Dialer, _ *tls.Config) (net.Conn, error) {
				if canDial {
					return clientEnd, nil
				}
				<-ctx.Done()
				return nil, ctx.Err()
			}}
			checkConnections(&option, life)
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
				t.Fatalf("dialing succeeds: %v: before the client was closed, the call ended with %v; want that it waits", canDial, err)
			default:
			}
			end()
			synctest.Wait()
			select {
			case err := <-ended:
				if err == nil {
					t.Errorf("dialing succeeds: %v: after the client was closed, the call returned no error; want one", canDial)
				}
			default:
				t.Errorf("dialing succeeds: %v: after the client was closed, the call still runs; want an error", canDial)
				clientEnd.Close()
			}
		})
	}
}
