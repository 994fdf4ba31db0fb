// Package demo lets an example show what it does: it asks its service 25 times, or serves it to
// others.
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

// Run serves on a free port of this machine and asks 25 times, as "POST /api/rides/request"; then
// the program ends. With the flag -listen it serves there instead, for as long as it may.
func Run(request string, serve func(net.Listener) error) {
	address := flag.String("listen", "", "serve on this `address`, as :8080, instead of asking 25 times")
	flag.Parse()
	if *address != "" {
		listener := listen(*address)
		fmt.Println("listening on", listener.Addr())
		log.Fatal(serve(listener))
	}
	listener := listen("127.0.0.1:0")
	go serve(listener) // until the program ends
	method, path, _ := strings.Cut(request, " ")
	if err := ask(method, "http://"+listener.Addr().String()+path); err != nil {
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

// ask asks 25 times in a row, and prints how it went.
func ask(method, url string) error {
	var denied *http.Response
	var why []byte
	counts := make(map[int]int)
	for range 25 {
		r, err := http.NewRequest(method, url, nil)
		if err != nil {
			return err
		}
		r.Header.Set("X-API-Key", "demo")
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			return err
		}
		body, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		if err != nil {
			return err
		}
		counts[answer.StatusCode]++
		if answer.StatusCode == http.StatusTooManyRequests && denied == nil {
			denied, why = answer, body
		}
	}
	allowed, refused := counts[http.StatusOK], counts[http.StatusTooManyRequests]
	fmt.Printf("%d allowed, %d denied\n", allowed, refused)
	if denied == nil || allowed+refused != 25 {
		return fmt.Errorf("the answers by status: %v; some should have been 200, and others 429", counts)
	}
	fmt.Printf("\n%s %s\n", denied.Proto, denied.Status)
	for _, name := range slices.Sorted(maps.Keys(denied.Header)) {
		fmt.Printf("%s: %s\n", name, strings.Join(denied.Header[name], ", "))
	}
	fmt.Printf("\n%s", why)
	return nil
}

// File finds a file of the examples, from the folder of the repository, of the examples or of one
// of them.
func File(name string) string {
	for _, dir := range []string{"examples", ".", ".."} {
		if path := filepath.Join(dir, name); exists(path) {
			return path
		}
	}
	return name // whoever opens it says what is wrong
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
