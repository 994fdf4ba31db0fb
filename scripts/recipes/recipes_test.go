//go:build checks

// Package recipes runs the configurations of deploy/recipes in real proxies, which scripts/proxies
// has put in bin/proxies. They are in front of an application, and call Penstock, which has a real
// Redis. The tests check the responses that clients get, and print a table. They fail if a result
// differs from docs/forward-auth.md. They also run Penstock's own proxy in front of servers that
// change the names of headers. Programs that are not named or not installed are skipped.
package recipes

import (
	"cmp"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/penstock/penstock/internal/testing/eventually"
	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/scripts/internal/process"
)

const recipesDir = "../../deploy/recipes/"

var names = flag.String("programs", "", "the names of the proxies and servers to check, separated by spaces")

// find returns the path of a program in bin/proxies, or "" if it is not named or not installed.
func find(t *testing.T, name string) string {
	path, err := filepath.Abs("../../bin/proxies/" + name)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil || !slices.Contains(strings.Fields(*names), name) {
		return ""
	}
	return path
}

// programOf returns the path of a program. Without the program, it skips the test.
func programOf(t *testing.T, name string) string {
	t.Helper()
	path := find(t, name)
	if path == "" {
		t.Skipf("%s is not named or not installed", name)
	}
	return path
}

// start starts a server, and returns when it listens at an address.
func start(t *testing.T, name, address string, cmd *exec.Cmd) *process.Process {
	t.Helper()
	p := process.Start(t, name, cmd)
	p.AwaitListening(address)
	return p
}

// await waits until a condition is true, and checks it every 50 ms.
func await(t *testing.T, event string, condition func() bool) {
	t.Helper()
	eventually.True(t, event, func() bool {
		isTrue := condition()
		if !isTrue {
			time.Sleep(50 * time.Millisecond)
		}
		return isTrue
	})
}

// publicDir makes a folder that all users can read: the worker processes of nginx run as another
// user.
func publicDir(t *testing.T) string {
	dir, err := os.MkdirTemp("", "recipes-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// A recipe is a proxy with its configuration.
type recipe struct {
	name    string // default: the program
	program string
	files   []string

	// args returns the arguments of the program. The folder dir has the files, and the proxy listens
	// on address.
	args func(dir, address string) []string
	// adapt changes a file so that the proxy runs without a system installation. nil: no change.
	adapt func(text string) string

	hasLimits     bool          // allowed responses have RateLimit headers
	keepsForged   bool          // X-Forwarded-For of the application begins with what the client has sent
	hasAllHeaders bool          // allowed responses have all headers of Penstock, which replace those of the application
	whenKilled    string        // status of requests while Penstock is killed
	whenHung      string        // status of requests while Penstock hangs
	hungFor       time.Duration // timeout of the proxy for Penstock

	// makeLenient changes the first file in the way that its comments describe. Then requests pass
	// while Penstock is killed or hangs. nil: the proxy cannot do that.
	makeLenient func(text string) string
	// isClosedWhenLenient is true if, while the store does not answer, limits with on_failure: closed
	// deny requests even in the lenient recipe.
	isClosedWhenLenient bool

	checks func(*row) // further checks of this recipe, while the store answers; nil: none
}

var recipes = []recipe{
	{
		program: "nginx", files: []string{"nginx.conf"}, hasLimits: true, hasAllHeaders: true, whenKilled: "500", whenHung: "500", hungFor: 5 * time.Second,
		makeLenient: func(text string) string { return strings.Replace(text, "# error_page 500", "error_page 500", 1) },
		args: func(dir, _ string) []string {
			return []string{"-p", dir, "-c", dir + "/nginx.conf", "-e", "stderr", "-g", "daemon off; pid nginx.pid; error_log stderr warn;"}
		},
		adapt: func(text string) string {
			paths := "http { access_log off;"
			for _, name := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
				paths += fmt.Sprintf(" %s_temp_path %[1]s;", name)
			}
			return strings.Replace(text, "http {", paths, 1)
		},
	},
	{
		program: "haproxy", files: []string{"haproxy.cfg", "penstock.lua"}, hasLimits: true, hasAllHeaders: true, whenKilled: "503", whenHung: "503", hungFor: 5 * time.Second,
		makeLenient: func(text string) string {
			return strings.Replace(text, "http-request return status 503 if { var(txn.penstock_down) -m bool }", "", 1)
		},
		args: func(dir, _ string) []string { return []string{"-db", "-f", dir + "/haproxy.cfg"} },
	},
	{
		program: "caddy", files: []string{"Caddyfile"}, hasLimits: true, whenKilled: "502", whenHung: "504", hungFor: 5 * time.Second,
		makeLenient: func(text string) string {
			before, commented, _ := strings.Cut(text, "	# handle_errors")
			return before + "	handle_errors" + strings.ReplaceAll(commented, "	# ", "	")
		},
		args: func(dir, _ string) []string {
			return []string{"run", "--config", dir + "/Caddyfile", "--adapter", "caddyfile"}
		},
		adapt: func(text string) string { return "{\n\tadmin off\n}\n" + text },
	},
	{
		program: "traefik", files: []string{"traefik-dynamic.yml"}, whenKilled: "500", whenHung: "500", hungFor: 30 * time.Second,
		args: func(dir, address string) []string {
			return []string{"--entrypoints.web.address=" + address, "--providers.file.filename=" + dir + "/traefik-dynamic.yml", "--global.checknewversion=false", "--global.sendanonymoususage=false"}
		},
	},
	{
		program: "envoy", files: []string{"envoy.yaml"}, hasLimits: true, keepsForged: true, whenKilled: "503", whenHung: "503", hungFor: 1 * time.Second,
		makeLenient: func(text string) string {
			return strings.Replace(text, "failure_mode_allow: false", "failure_mode_allow: true", 1)
		},
		args: envoyArgs("envoy.yaml"),
	},
	{
		name: "envoy by gRPC", program: "envoy", files: []string{"envoy-grpc.yaml"}, hasLimits: true, keepsForged: true, hasAllHeaders: true, whenKilled: "503", whenHung: "503", hungFor: 1 * time.Second,
		makeLenient: func(text string) string {
			return strings.Replace(text, "failure_mode_allow: false", "failure_mode_allow: true", 1)
		},
		args:                envoyArgs("envoy-grpc.yaml"),
		isClosedWhenLenient: true,
		checks:              checkContextExtensions,
	},
}

func envoyArgs(file string) func(dir, _ string) []string {
	return func(dir, _ string) []string { return envoyCommand("", dir+"/"+file).Args[1:] }
}

// title returns the name of the recipe.
func (r *recipe) title() string { return cmp.Or(r.name, r.program) }

// key returns the name of the recipe as a part of keys, so that no two recipes share a key.
func (r *recipe) key() string { return strings.ReplaceAll(r.title(), " ", "-") }

// checkContextExtensions checks that a route of Envoy can select a rule by a context extension, and
// that clients cannot do so by a header.
func checkContextExtensions(r *row) {
	for _, c := range []struct {
		path   string
		header []string // name and value
		want   string   // status
	}{
		{path: "/trial/a", want: "200"},
		{path: "/trial/b", want: "429"},
		{path: "/free", header: []string{"X-Context-Plan", "trial"}, want: "200"},
		{path: "/trial", header: []string{"X-Context-Plan", "paid"}, want: "429"},
	} {
		a := r.send("GET", c.path, "shop.example", c.header...)
		r.expect(a.status == c.want, "%s got %s; want %s", a.request, a.status, c.want)
	}
}

// policy gets the addresses of the proxies for %s.
const policy = `
http: {trusted_proxies: %s, headers: [draft-11, x-ratelimit], cors: {origins: https://app.example, credentials: true}}
deny: {header X-Api-Key: banned}
rules:
  - {name: shop, match: {method: POST, host: shop.example, path: /api/**}, per: {key: header X-Api-Key}, limits: [{rate: 3/h, burst: 3}]}
  - {name: address, match: {path: /address}, per: ip, limits: [{rate: 2/h}]}
  - {name: token, match: {path: /token}, per: {key: query token}, limits: [{rate: 1/h}]}
  - {name: open, match: {path: /open}, per: {key: header X-Api-Key}, limits: [{rate: 1000/h, on_failure: open}]}
  - {name: own, match: {path: /own}, per: {key: header X-Api-Key}, limits: [{rate: 1/h}]}
  - {name: hung, match: {path: /hung}, per: {key: header X-Api-Key}, limits: [{rate: 1000/h}]}
  - {name: trial, match: {header X-Context-Plan: trial}, per: ip, limits: [{rate: 1/h}]}
  - {name: closed, match: {path: /closed}, per: {key: header X-Api-Key}, limits: [{rate: 1000/h, on_failure: closed}]}
`

// proxyAddresses returns a YAML list of the addresses of the proxies. These are the loopback
// address from which they send requests, and the other addresses of this machine. Envoy adds one of
// the other addresses to X-Forwarded-For.
func proxyAddresses(t *testing.T) string {
	list := "[127.0.0.1"
	all, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, address := range all {
		if network, ok := address.(*net.IPNet); ok && network.IP.To4() != nil && !network.IP.IsLoopback() {
			list += ", " + network.IP.String()
		}
	}
	return list + "]"
}

func TestRecipes(t *testing.T) {
	dir, redis, app := publicDir(t), redistest.Start(t), startApp(t)
	config := filepath.Join(dir, "rules.yaml")
	process.WriteFile(t, config, fmt.Sprintf(policy, proxyAddresses(t)))
	penstock := process.Serve(t, "--api=127.0.0.1:0", "--grpc=127.0.0.1:0", "--config="+config, "--store="+redis.URL())
	checkUntrusted(t, penstock.API)
	var rows []*row
	for _, recipe := range recipes {
		program := find(t, recipe.program)
		if program == "" {
			continue
		}
		number := len(rows) + 1
		r := newRow(t, recipe, app, number)
		rows = append(rows, r)
		r.start(dir, program, penstock)
		if recipe.makeLenient != nil {
			r.lenient = newRow(t, recipe, app, number)
			r.lenient.isLenient = true
			r.lenient.start(dir, program, penstock)
		}
	}

	for _, r := range rows {
		r.checkWhileUp()
	}
	redis.Kill()
	for _, r := range rows {
		r.killedOpen, r.killedClosed = r.checkWithoutStore()
	}
	if err := redis.Restart(); err != nil {
		t.Fatal(err)
	}
	client := http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	// ask sends a request to Penstock, and returns its RateLimit.
	ask := func() (limits string, err error) {
		response, err := client.Get("http://" + penstock.API + "/auth/ext/open")
		if err != nil {
			return "", err
		}
		response.Body.Close()
		return response.Header.Get("RateLimit"), nil
	}
	await(t, "the store decides again", func() bool {
		limits, err := ask()
		return err == nil && limits != ""
	})
	redis.Pause()
	for _, r := range rows {
		r.hangingOpen, r.hangingClosed = r.checkWithoutStore()
	}
	redis.Resume()
	penstock.Signal(syscall.SIGSTOP)
	await(t, "Penstock no longer answers", func() bool { // a process stops some time after the signal
		_, err := ask()
		return err != nil
	})
	// All proxies wait for Penstock at the same time, because Traefik waits for 30 s.
	var waiting sync.WaitGroup
	for _, r := range rows {
		waiting.Go(func() { r.hung, r.hungLenient = r.checkWithoutPenstock(r.recipe.whenHung, r.recipe.hungFor) })
	}
	waiting.Wait()
	penstock.Signal(syscall.SIGCONT)
	penstock.End()
	for _, r := range rows {
		r.killed, r.killedLenient = r.checkWithoutPenstock(r.recipe.whenKilled, 0)
	}
	printTable(rows)
}

// startApp starts the application behind the proxies, and returns its address. It responds with the
// method, the URI and the body of the request. Its header X-App-Key is the API key that an
// application behind CGI sees. X-App-Host and X-App-For are the host and X-Forwarded-For of the
// request. At /own the application sends headers about limits of its own.
func startApp(t *testing.T) (address string) {
	return process.ServeHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for name, values := range r.Header {
			if variableOf(name) == variableOf("X-API-Key") {
				w.Header()["X-App-Key"] = append(w.Header()["X-App-Key"], values...)
			}
		}
		w.Header().Set("X-App-Host", r.Host)
		w.Header().Set("X-App-For", strings.Join(r.Header.Values("X-Forwarded-For"), ", "))
		body, err := io.ReadAll(r.Body)
		if err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		if r.URL.Path == "/own" {
			w.Header().Set("RateLimit", `"app";r=5;t=1`)
			w.Header().Set("RateLimit-Policy", `"app";q=9;w=1`)
		}
		fmt.Fprintf(w, "app %s %s %s", r.Method, r.RequestURI, body)
	}))
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

// checkUntrusted checks that Penstock rejects requests from an untrusted address.
func checkUntrusted(t *testing.T, api string) {
	penstock := &row{address: api, client: clientFrom(net.IPv4(127, 0, 0, 9))}
	for _, path := range []string{"/auth/forward", "/auth/request", "/auth/ext/free"} {
		a := penstock.send("GET", path, api, "X-Forwarded-Method", "GET", "X-Original-Method", "GET")
		if a.status != "403" || !strings.Contains(a.body, "trusted_proxies") {
			t.Errorf("%s answered the untrusted address 127.0.0.9 with %+v; want 403 with a text about trusted_proxies", path, a)
		}
	}
}

// printTable prints the results.
func printTable(rows []*row) {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "proxy\tpassed\tdenied\tRetry-After\tRateLimit\tstore killed:\t\tstore hangs:\t\tforged headers\tnames\tPenstock hangs:\t\tPenstock killed:\t")
	fmt.Fprintln(w, "\t\t\t\t\topen\tclosed\topen\tclosed\trejected\tdropped\tdefault\tlenient\tdefault\tlenient")
	for _, r := range rows {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d of %d\t%d of %d\t%s\t%s\t%s\t%s\n", r.recipe.title(), r.passed, r.denied, r.retryAfter, r.limits,
			r.killedOpen, r.killedClosed, r.hangingOpen, r.hangingClosed, r.rejectedForged, r.allForged, r.dropped, r.names, r.hung, r.hungLenient, r.killed, r.killedLenient)
	}
	_ = w.Flush()
}
