package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// An app is the application behind the proxies. It responds with the method, the URI and the body
// of the request. Its header X-App-Key is the API key that an application behind CGI sees.
type app struct{ address string }

func startApp() (*app, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	go http.Serve(listener, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for name, values := range r.Header {
			if variableOf(name) == variableOf("X-API-Key") {
				w.Header()["X-App-Key"] = append(w.Header()["X-App-Key"], values...)
			}
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		fmt.Fprintf(w, "app %s %s %s", r.Method, r.RequestURI, body)
	}))
	return &app{listener.Addr().String()}, nil
}

// variableOf returns the name of the variable that lighttpd makes of a header for CGI, without its
// prefix HTTP_.
func variableOf(header string) string {
	return strings.Map(func(c rune) rune {
		if c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' {
			return c
		}
		return '_'
	}, strings.ToUpper(header))
}

// freeAddress returns an address on which nothing listens.
func freeAddress() string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

// A process is a running server.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // is closed when the process has ended
}

// start starts a server, and returns when it listens. Its log is in dir.
func start(dir, name, address string, cmd *exec.Cmd) (*process, error) {
	file := filepath.Join(dir, name+".log")
	out, err := os.Create(file)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{cmd, make(chan struct{})}
	go func() {
		cmd.Wait()
		close(p.done)
	}()
	err = await(name+" does not listen on "+address, func() bool {
		connection, err := net.Dial("tcp", address)
		if err == nil {
			connection.Close()
		}
		return err == nil || p.hasEnded()
	})
	if err == nil && p.hasEnded() {
		err = errors.New(name + " ended before it could serve requests")
	}
	if err != nil {
		p.end()
		text, _ := os.ReadFile(file)
		return nil, fmt.Errorf("%w:\n%s", err, text)
	}
	return p, nil
}

func (p *process) hasEnded() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// end ends the process with SIGINT, so that nginx ends its workers. After 5 s it uses SIGKILL.
func (p *process) end() {
	p.cmd.Process.Signal(os.Interrupt)
	select {
	case <-p.done:
	case <-time.After(5 * time.Second):
		p.cmd.Process.Kill()
		<-p.done
	}
}

// await returns nil as soon as isTrue returns true. After a minute it returns failure as an error.
func await(failure string, isTrue func() bool) error {
	for end := time.Now().Add(time.Minute); !isTrue(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			return errors.New(failure)
		}
	}
	return nil
}
