package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

const (
	startTimeout  = 30 * time.Second
	answerTimeout = 10 * time.Second
)

// A service is a process that serves the protocol over gRPC and HTTP.
type service struct {
	name string
	grpc string // the address for gRPC, host:port
	http string // the address for HTTP, host:port

	client     rls.RateLimitServiceClient
	connection *grpc.ClientConn
	cmd        *exec.Cmd
	ended      chan struct{} // closed when the process has ended
	logFile    string        // has the output of the process
}

// start starts the process in the folder dir, and returns when it serves.
func (s *service) start(dir string, environment []string, program string, args ...string) error {
	s.logFile = filepath.Join(dir, s.name+".log")
	out, err := os.OpenFile(s.logFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer out.Close()
	s.cmd = exec.Command(program, args...)
	s.cmd.Dir, s.cmd.Stdout, s.cmd.Stderr = dir, out, out
	s.cmd.Env = append(os.Environ(), environment...)
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := s.cmd.Start(); err != nil {
		return err
	}
	s.ended = make(chan struct{})
	go func() {
		defer close(s.ended)
		_ = s.cmd.Wait()
	}()
	s.connection, err = grpc.NewClient("passthrough:///"+s.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		s.stop()
		return err
	}
	s.client = rls.NewRateLimitServiceClient(s.connection)
	if err := s.awaitHealth(); err != nil {
		s.stop()
		text, _ := os.ReadFile(s.logFile)
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		const shown = 15 // lines
		lastLines := lines[max(0, len(lines)-shown):]
		return fmt.Errorf("start %s: %w; the end of its log:\n%s", s.name, err, strings.Join(lastLines, "\n"))
	}
	return nil
}

func (s *service) awaitHealth() error {
	client := &http.Client{Timeout: answerTimeout}
	for end := time.Now().Add(startTimeout); ; time.Sleep(20 * time.Millisecond) {
		if s.hasEnded() {
			return errors.New("the process has ended")
		}
		response, err := client.Get("http://" + s.http + "/healthcheck")
		if err == nil {
			response.Body.Close()
			if response.StatusCode != http.StatusOK {
				err = errors.New("/healthcheck returned " + response.Status)
			}
		}
		if err == nil {
			var connection net.Conn
			if connection, err = net.Dial("tcp", s.grpc); err == nil {
				return connection.Close()
			}
		}
		if time.Now().After(end) {
			return err
		}
	}
}

func (s *service) hasEnded() bool {
	select {
	case <-s.ended:
		return true
	default:
		return false
	}
}

func (s *service) stop() {
	if s.connection != nil {
		s.connection.Close()
	}
	if s.cmd != nil && s.cmd.Process != nil {
		_ = s.cmd.Process.Kill()
		<-s.ended
	}
}

func (s *service) respond(request *rls.RateLimitRequest) answer {
	ctx, cancel := context.WithTimeout(context.Background(), answerTimeout)
	defer cancel()
	response, err := s.client.ShouldRateLimit(ctx, request)
	return answer{response: response, err: err}.normalize()
}

func freeAddresses(n int) ([]string, error) {
	var addresses []string
	for range n {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer listener.Close()
		addresses = append(addresses, listener.Addr().String())
	}
	return addresses, nil
}
