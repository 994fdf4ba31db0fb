package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/penstock/penstock/internal/testing/redistest"
)

// served returns a limiter in processes of penstock serve, with a real Redis.
func served(binary string) limiter {
	return func(file string, target *url.URL) (front *url.URL, stop func(), err error) {
		redis, err := redistest.Launch()
		if err != nil {
			return nil, nil, err
		}
		front, stopService, err := startService(binary, file, target, redis.URL())
		if err != nil {
			redis.Close()
			return nil, nil, err
		}
		return front, func() { stopService(); redis.Close() }, nil
	}
}

// maxLogLines is how many lines of the log an error shows.
const maxLogLines = 50

// startService starts penstock serve in front of an upstream, and returns when it accepts requests.
func startService(binary, file string, upstream *url.URL, store string) (target *url.URL, stop func(), err error) {
	process := exec.Command(binary, "serve", "--config", file, "--upstream", upstream.String(), "--store", store,
		"--listen", "127.0.0.1:0", "--admin-listen", "off", "--log-format", "json")
	log, err := process.StderrPipe()
	if err != nil {
		return nil, nil, err
	}
	if err := process.Start(); err != nil {
		return nil, nil, err
	}
	address, ended := make(chan string, 1), make(chan struct{})
	var text strings.Builder // of the log; read once ended is closed
	go func() {
		defer close(ended)
		lines := bufio.NewScanner(log)
		for n := 0; lines.Scan(); n++ {
			var line struct{ Msg, Listen string }
			if err := json.Unmarshal(lines.Bytes(), &line); err == nil && line.Msg == "listening" {
				address <- line.Listen
			}
			if n < maxLogLines {
				fmt.Fprintln(&text, lines.Text())
			}
		}
	}()
	stop = func() {
		_ = process.Process.Signal(os.Interrupt)
		kill := time.AfterFunc(40*time.Second, func() { _ = process.Process.Kill() })
		defer kill.Stop()
		<-ended
		_ = process.Wait()
	}
	select {
	case host := <-address:
		return &url.URL{Scheme: "http", Host: host}, stop, nil
	case <-ended:
		_ = process.Wait()
		return nil, nil, fmt.Errorf("penstock serve has ended:\n%s", &text)
	case <-time.After(20 * time.Second):
		stop()
		return nil, nil, errors.New("penstock serve does not listen after 20 s")
	}
}
