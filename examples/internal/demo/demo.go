// Package demo runs the service of an example. The package sends 25 requests to the service, or
// serves the service on an address.
package demo

import (
	"flag"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// requestCount is how many requests Run sends.
const requestCount = 25

// Run serves on a free port, sends 25 requests, such as "POST /api/rides/request", and returns.
// With the flag -listen it serves on that address until the program ends.
func Run(request string, serve func(net.Listener) error) {
	address := flag.String("listen", "", "serve on this `address`, such as :8080, instead of sending 25 requests")
	flag.Parse()
	if *address != "" {
		listener := listen(*address)
		fmt.Println("listening on", listener.Addr())
		log.Fatal(serve(listener))
	}
	listener := listen("127.0.0.1:0")
	go serve(listener) // runs until the program ends
	method, path, _ := strings.Cut(request, " ")
	if err := sendRequests(method, "http://"+listener.Addr().String()+path); err != nil {
		log.Fatal(err)
	}
}

func listen(address string) net.Listener {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		log.Fatal(err)
	}
	return listener
}

// sendRequests sends 25 requests, and prints how many were allowed and denied, and the first
// denial.
func sendRequests(method, url string) error {
	var denial *http.Response
	var denialBody []byte
	counts := make(map[int]int)
	for range requestCount {
		r, err := http.NewRequest(method, url, nil)
		if err != nil {
			return err
		}
		r.Header.Set("X-API-Key", "demo")
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			return err
		}
		body, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil {
			return err
		}
		counts[res.StatusCode]++
		if res.StatusCode == http.StatusTooManyRequests && denial == nil {
			denial, denialBody = res, body
		}
	}
	allowed, denied := counts[http.StatusOK], counts[http.StatusTooManyRequests]
	fmt.Printf("%d allowed, %d denied\n", allowed, denied)
	if denial == nil || allowed+denied != requestCount {
		return fmt.Errorf("the number of responses by status is %v; want only 200 and 429, and both of them", counts)
	}
	for _, name := range []string{"RateLimit", "RateLimit-Policy", "Retry-After"} {
		if denial.Header.Get(name) == "" {
			return fmt.Errorf("the denial has no header %s; it has %v", name, denial.Header)
		}
	}
	fmt.Printf("\n%s %s\n", denial.Proto, denial.Status)
	for _, name := range slices.Sorted(maps.Keys(denial.Header)) {
		fmt.Printf("%s: %s\n", name, strings.Join(denial.Header[name], ", "))
	}
	fmt.Printf("\n%s", denialBody)
	return nil
}

// File finds a file of the examples. The current folder may be that of the repository, of the
// examples, or of one example.
func File(name string) string {
	for _, dir := range []string{"examples", ".", ".."} {
		if path := filepath.Join(dir, name); exists(path) {
			return path
		}
	}
	return name // opening it fails with a clear error
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
