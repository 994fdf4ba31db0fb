// Command recipes runs the configurations of deploy/recipes in real proxies. They are in front of
// an application, and call Penstock, which has a real Redis. The command checks the responses that
// clients get, and prints a table. It fails if a result differs from docs/forward-auth.md. It also
// runs Penstock's own proxy in front of servers that change the names of headers. Its arguments are
// the folder of the recipes, the folder that scripts/proxies has filled, and the names of proxies
// and servers. It skips those that are not installed.
package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/penstock/penstock/internal/redistest"
)

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

	hasLimits  bool   // allowed responses have RateLimit headers
	whenKilled string // status of requests while Penstock is killed
	whenHung   string // status of requests while Penstock hangs

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
		program: "nginx", files: []string{"nginx.conf"}, hasLimits: true, whenKilled: "500", whenHung: "500",
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
		program: "haproxy", files: []string{"haproxy.cfg", "penstock.lua"}, hasLimits: true, whenKilled: "503", whenHung: "503",
		makeLenient: func(text string) string {
			return strings.Replace(text, "http-request return status 503 if { var(txn.penstock_down) -m bool }", "", 1)
		},
		args: func(dir, _ string) []string { return []string{"-db", "-C", dir, "-f", "haproxy.cfg"} },
	},
	{
		program: "caddy", files: []string{"Caddyfile"}, hasLimits: true, whenKilled: "502", whenHung: "504",
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
		program: "traefik", files: []string{"traefik-dynamic.yml"}, whenKilled: "500", whenHung: "500",
		args: func(dir, address string) []string {
			return []string{"--entrypoints.web.address=" + address, "--providers.file.filename=" + dir + "/traefik-dynamic.yml", "--global.checknewversion=false", "--global.sendanonymoususage=false"}
		},
	},
	{
		program: "envoy", files: []string{"envoy.yaml"}, hasLimits: true, whenKilled: "503", whenHung: "503",
		makeLenient: func(text string) string {
			return strings.Replace(text, "failure_mode_allow: false", "failure_mode_allow: true", 1)
		},
		args: envoyArgs("envoy.yaml"),
	},
	{
		name: "envoy by gRPC", program: "envoy", files: []string{"envoy-grpc.yaml"}, hasLimits: true, whenKilled: "503", whenHung: "503",
		makeLenient: func(text string) string {
			return strings.Replace(text, "failure_mode_allow: false", "failure_mode_allow: true", 1)
		},
		args:                envoyArgs("envoy-grpc.yaml"),
		isClosedWhenLenient: true,
		checks:              checkContextExtensions,
	},
}

func envoyArgs(file string) func(dir, _ string) []string {
	return func(dir, _ string) []string {
		return []string{"-c", dir + "/" + file, "--disable-hot-restart", "--concurrency", "1", "--log-level", "error"}
	}
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
http: {trusted_proxies: %s}
deny: {header X-Api-Key: banned}
rules:
  - {name: shop, match: {method: POST, host: shop.example, path: /api/**}, per: {key: header X-Api-Key}, limits: [{rate: 3/h, burst: 3}]}
  - {name: address, match: {path: /address}, per: ip, limits: [{rate: 2/h}]}
  - {name: token, match: {path: /token}, per: {key: query token}, limits: [{rate: 1/h}]}
  - {name: open, match: {path: /open}, per: {key: header X-Api-Key}, limits: [{rate: 1000/h, on_failure: open}]}
  - {name: trial, match: {header X-Context-Plan: trial}, per: ip, limits: [{rate: 1/h}]}
  - {name: closed, match: {path: /closed}, per: {key: header X-Api-Key}, limits: [{rate: 1000/h, on_failure: closed}]}
`

// proxyAddresses returns a YAML list of the addresses of the proxies. These are the loopback
// address from which they send requests, and the other addresses of this machine. Envoy adds one of
// the other addresses to X-Forwarded-For.
func proxyAddresses() (list string, err error) {
	list = "[127.0.0.1"
	all, err := net.InterfaceAddrs()
	for _, address := range all {
		if network, ok := address.(*net.IPNet); ok && network.IP.To4() != nil && !network.IP.IsLoopback() {
			list += ", " + network.IP.String()
		}
	}
	return list + "]", err
}

// penstockCommand builds Penstock, and returns the command that runs it.
func penstockCommand(dir, address, grpc, config, store string) (*exec.Cmd, error) {
	program := filepath.Join(dir, "penstock")
	build := exec.Command("go", "build", "-o", program, ".")
	build.Dir = filepath.Join("..", "cmd", "penstock") // recipes runs in the folder scripts
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build %s: %w\n%s", build.Dir, err, out)
	}
	return exec.Command(program, "serve", "--api", address, "--grpc", grpc, "--admin-listen", "off", "--config", config, "--store", store), nil
}

func main() {
	log.SetFlags(0)
	log.SetPrefix("recipes: ")
	if len(os.Args) < 4 {
		log.Fatal("usage: recipes RECIPES PROXIES NAME...")
	}
	if err := run(os.Args[1], os.Args[2], os.Args[3:]); err != nil {
		log.Fatal(err)
	}
}

func run(recipesDir, proxiesDir string, names []string) error {
	dir, err := os.MkdirTemp("", "recipes-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	// The worker processes of nginx run as another user, and read this folder.
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	redis, err := redistest.Launch()
	if err != nil {
		return err
	}
	defer redis.Close()
	address, grpc := freeAddress(), freeAddress()
	penstock, err := startPenstock(dir, address, grpc, redis.URL())
	if err != nil {
		return err
	}
	defer penstock.end()
	if err := checkUntrusted(address); err != nil {
		return err
	}
	rows, err := startRows(dir, recipesDir, proxiesDir, services{address, grpc}, names)
	defer func() {
		for _, r := range rows {
			r.end()
		}
	}()
	if err != nil {
		return err
	}

	for _, r := range rows {
		r.checkWhileUp()
	}
	redis.Kill()
	for _, r := range rows {
		r.killedOpen, r.killedClosed = r.checkWithoutStore()
	}
	if err := redis.Restart(); err != nil {
		return err
	}
	if err := awaitStore(address); err != nil {
		return err
	}
	redis.Pause()
	for _, r := range rows {
		r.hangingOpen, r.hangingClosed = r.checkWithoutStore()
	}
	redis.Resume()
	penstock.cmd.Process.Signal(syscall.SIGSTOP)
	if err := awaitSilence(address); err != nil {
		return err
	}
	// All proxies wait for Penstock at the same time, because Traefik waits for 30 s.
	var waiting sync.WaitGroup
	for _, r := range rows {
		waiting.Go(func() { r.hung, r.hungLenient = r.checkWithoutPenstock(r.recipe.whenHung) })
	}
	waiting.Wait()
	penstock.cmd.Process.Signal(syscall.SIGCONT)
	penstock.end()
	for _, r := range rows {
		r.killed, r.killedLenient = r.checkWithoutPenstock(r.recipe.whenKilled)
	}
	err = errors.Join(printTable(rows), checkLimitReq(dir, recipesDir, proxiesDir), checkServers(dir, proxiesDir, names))
	if slices.Contains(names, "envoy") {
		err = errors.Join(err, runRateLimit(dir, recipesDir, proxiesDir))
	}
	return err
}

func startPenstock(dir, address, grpc, store string) (*process, error) {
	trusted, err := proxyAddresses()
	if err != nil {
		return nil, err
	}
	config := filepath.Join(dir, "rules.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, policy, trusted), 0o600); err != nil {
		return nil, err
	}
	cmd, err := penstockCommand(dir, address, grpc, config, store)
	if err != nil {
		return nil, err
	}
	return start(dir, "penstock", address, cmd)
}

// services are the addresses of Penstock.
type services struct{ api, grpc string }

// startRows starts the named proxies that are installed, in front of one application. With an
// error, it returns the proxies that it started before.
func startRows(dir, recipesDir, proxiesDir string, penstock services, names []string) (rows []*row, err error) {
	app, err := startApp()
	if err != nil {
		return nil, err
	}
	for _, recipe := range recipes {
		if !slices.Contains(names, recipe.program) {
			continue
		}
		program, err := filepath.Abs(filepath.Join(proxiesDir, recipe.program))
		if err != nil {
			return rows, err
		}
		if _, err := os.Stat(program); err != nil {
			continue // scripts/proxies has reported it
		}
		number := len(rows) + 1
		r := newRow(recipe, app, number)
		rows = append(rows, r)
		if err := r.start(dir, recipesDir, program, penstock); err != nil {
			return rows, err
		}
		if recipe.makeLenient == nil {
			continue
		}
		r.lenient = newRow(recipe, app, number)
		r.lenient.isLenient = true
		if err := r.lenient.start(dir, recipesDir, program, penstock); err != nil {
			return rows, err
		}
	}
	return rows, nil
}

// checkUntrusted checks that Penstock rejects requests from an untrusted address.
func checkUntrusted(penstock string) error {
	untrusted := clientFrom(net.IPv4(127, 0, 0, 9))
	for _, path := range []string{"/auth/forward", "/auth/request", "/auth/ext/free"} {
		req, err := http.NewRequest("GET", "http://"+penstock+path, nil)
		if err != nil {
			return err
		}
		for _, name := range []string{"X-Forwarded-Method", "X-Original-Method"} {
			req.Header.Set(name, "GET")
		}
		response, err := untrusted.Do(req)
		if err != nil {
			return err
		}
		body, _ := io.ReadAll(response.Body)
		response.Body.Close()
		if response.StatusCode != 403 || !strings.Contains(string(body), "trusted_proxies") {
			return fmt.Errorf("%s answered the untrusted address 127.0.0.9 with %s %s; want 403 with a text about trusted_proxies", path, response.Status, body)
		}
	}
	return nil
}

// awaitSilence waits until Penstock no longer responds. A process stops some time after the signal.
func awaitSilence(penstock string) error {
	client := http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	return await("Penstock answers although it was stopped", func() bool {
		response, err := client.Get("http://" + penstock + "/auth/ext/open")
		if err != nil {
			return true
		}
		response.Body.Close()
		return false
	})
}

// awaitStore waits until the store decides again.
func awaitStore(penstock string) error {
	return await("the store does not decide", func() bool {
		req, err := http.NewRequest("GET", "http://"+penstock+"/auth/ext/open", nil)
		if err != nil {
			return false
		}
		response, err := http.DefaultClient.Do(req)
		if err != nil {
			return false
		}
		response.Body.Close()
		return response.Header.Get("RateLimit") != ""
	})
}

// printTable prints the results. It returns an error if a row has failures.
func printTable(rows []*row) error {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "proxy\tpassed\tdenied\tRetry-After\tRateLimit\tstore killed:\t\tstore hangs:\t\tforged headers\tnames\tPenstock hangs:\t\tPenstock killed:\t")
	fmt.Fprintln(w, "\t\t\t\t\topen\tclosed\topen\tclosed\trejected\tdropped\tdefault\tlenient\tdefault\tlenient")
	var failures []string
	for _, r := range rows {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d of %d\t%d of %d\t%s\t%s\t%s\t%s\n", r.recipe.title(), r.passed, r.denied, r.retryAfter, r.limits,
			r.killedOpen, r.killedClosed, r.hangingOpen, r.hangingClosed, r.rejectedForged, r.allForged, r.dropped, r.names, r.hung, r.hungLenient, r.killed, r.killedLenient)
		failures = append(failures, r.failures...)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if len(failures) > 0 {
		return fmt.Errorf("%d checks failed:\n%s", len(failures), strings.Join(failures, "\n"))
	}
	return nil
}
