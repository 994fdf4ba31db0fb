package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// A row has the results of the clients of one proxy.
type row struct {
	recipe  recipe
	address string
	proxy   *process
	app     *app
	client  *http.Client
	number  int // from 1

	isOpen bool // the recipe lets requests pass while Penstock does not answer
	opened *row // the same proxy with isOpen; nil: it cannot

	// The results, which are the columns of the table. An opened result is that of row.opened.
	passed, denied             string // how many requests passed; the status of a denial
	retryAfter, limits         string // the headers Retry-After and RateLimit
	killedOpen, killedClosed   string // while the store is killed: the status with on_failure open and closed
	hangingOpen, hangingClosed string // while the store hangs: the status with on_failure open and closed
	rejectedForged, allForged  int    // forged requests that were rejected; all forged requests
	hung, hungOpened           string // while Penstock hangs: the status
	killed, killedOpened       string // while Penstock is killed: the status
	failures                   []string
}

// usualClient is the last number of the address from which a row sends most requests.
const usualClient = 9

func newRow(recipe recipe, app *app, number int) *row {
	r := &row{recipe: recipe, app: app, address: freeAddress(), number: number}
	r.client = r.clientOf(usualClient)
	return r
}

// end ends the proxy, and its opened copy.
func (r *row) end() {
	if r.proxy != nil {
		r.proxy.end()
	}
	if r.opened != nil {
		r.opened.end()
	}
}

// start runs the proxy with its recipe. It replaces the addresses in the recipe.
func (r *row) start(dir, recipesDir, program string, penstock services) error {
	name := r.recipe.key()
	if r.isOpen {
		name += "-open"
	}
	own := filepath.Join(dir, name)
	if err := os.Mkdir(own, 0o777); err != nil {
		return err
	}
	replaceAddresses := func(text string) string {
		for portInRecipe, address := range map[string]string{"8080": r.address, "3000": r.app.address, "8181": penstock.api, "8081": penstock.grpc} {
			_, port, _ := net.SplitHostPort(address)
			text = strings.NewReplacer("127.0.0.1:"+portInRecipe, address, "//:"+portInRecipe, "//:"+port, "port_value: "+portInRecipe, "port_value: "+port).Replace(text)
		}
		return text
	}
	for _, file := range r.recipe.files {
		text, err := os.ReadFile(filepath.Join(recipesDir, file))
		if err != nil {
			return err
		}
		adapted := replaceAddresses(string(text))
		if r.isOpen && file == r.recipe.files[0] {
			opened := r.recipe.open(adapted)
			if opened == adapted {
				return fmt.Errorf("%s has no line to change so that requests pass", file)
			}
			adapted = opened
		}
		if r.recipe.adapt != nil {
			adapted = r.recipe.adapt(adapted)
		}
		if err := os.WriteFile(filepath.Join(own, file), []byte(adapted), 0o644); err != nil {
			return err
		}
	}
	cmd := exec.Command(program, r.recipe.args(own, r.address)...)
	cmd.Dir = own
	cmd.Env = append(os.Environ(), "HOME="+own, "XDG_CONFIG_HOME="+own, "XDG_DATA_HOME="+own)
	var err error
	if r.proxy, err = start(dir, name, r.address, cmd); err != nil {
		return err
	}
	// Traefik listens before it has read its routes.
	var last answer
	err = await(r.recipe.title()+" routes nothing", func() bool {
		last = r.send("GET", "/free", "shop.example")
		return last.body == "app GET /free "
	})
	if err != nil {
		return fmt.Errorf("%w: %+v", err, last)
	}
	return nil
}

// checkWhileUp sends requests while the store answers.
func (r *row) checkWhileUp() {
	r.checkLimit()
	r.checkForged()
	r.checkAddresses()
	r.expect(r.rejectedForged == r.allForged, "%d of %d forged requests were rejected; want all", r.rejectedForged, r.allForged)
	r.checkOthers()
	if r.recipe.checks != nil {
		r.recipe.checks(r)
	}
	if r.opened != nil {
		r.checkOpened()
	}
}

// post sends a request that the rule shop limits, with the row's own key.
func (r *row) post(path string, header ...string) answer {
	return r.send("POST", path, "shop.example", append([]string{"X-Api-Key", "a-" + r.recipe.key()}, header...)...)
}

// checkLimit uses up the limit of the row's key.
func (r *row) checkLimit() {
	passed, shown := 0, 0 // shown: responses with the right RateLimit
	for left := 2; left >= 0; left-- {
		a := r.post("/api/things?x=1")
		r.expect(a.status == "200" && a.body == "app POST /api/things?x=1 ", "an allowed request got %+v", a)
		if a.status == "200" {
			passed++
		}
		if strings.HasPrefix(a.header.Get("RateLimit"), fmt.Sprintf(`"shop.hour";r=%d;`, left)) {
			shown++
		}
	}
	r.passed = fmt.Sprintf("%d of 3", passed)
	r.limits = map[bool]string{true: "yes", false: "on denials"}[shown == 3]
	wantShown := map[bool]int{true: 3, false: 0}[r.recipe.hasLimits]
	r.expect(shown == wantShown, "%d of 3 allowed requests show the right RateLimit; want %d", shown, wantShown)

	a := r.post("/api/things?x=1")
	r.denied, r.retryAfter = a.status, a.header.Get("Retry-After")
	r.expect(r.denied == "429", "a request over the limit got %s; want 429", r.denied)
	r.expect(r.retryAfter == "1200", "Retry-After is %q; want 1200", r.retryAfter)
	r.expect(strings.HasPrefix(a.header.Get("RateLimit"), `"shop.hour";r=0;`), "a denial has RateLimit %q; want \"shop.hour\";r=0;…", a.header.Get("RateLimit"))
	r.expect(a.header.Get("Content-Type") == "application/problem+json" && strings.Contains(a.body, `"status":429`), "a denial has the body %q of type %q; want a problem with status 429", a.body, a.header.Get("Content-Type"))
}

// checkForged checks that no spelling of the path and no header makes a request pass that is over
// the limit.
func (r *row) checkForged() {
	for _, path := range []string{"/%61pi/things", "/x/../api/things", "/api/./things", "//api//things", "/api%2Fthings", "/x/%2e%2e/api/things",
		"http://shop.example/api/things", "http://shop.example:80/x/../api/things", "/api/things#/free", "/api/things?/../../free"} {
		r.countForged(r.post(path))
	}
	for _, header := range [][]string{
		{"X-Forwarded-Uri", "/free"}, {"X-Forwarded-Method", "GET"}, {"X-Forwarded-Host", "free.example"}, {"X-Forwarded-Uri", "/free", "X-Forwarded-Method", "GET"},
		{"X-Original-URI", "/free"}, {"X-Original-URL", "http://free.example/free"}, {"X-Original-Method", "GET"}, {"X-Original-URI", "/free", "X-Original-Method", "GET"},
		{"X-Envoy-Original-Path", "/free"}, {"X-Rewrite-Url", "/free"}, {"X-HTTP-Method-Override", "GET"},
	} {
		r.countForged(r.post("/api/things", header...))
	}
}

// checkAddresses checks that each client of the proxy is limited by its true address, even if it
// sends headers with other addresses.
func (r *row) checkAddresses() {
	usual := r.client
	defer func() { r.client = usual }()
	for last := range 2 {
		r.client = r.clientOf(10 + last)
		passed := 0
		for i := range 6 {
			forged := fmt.Sprintf("203.0.113.%d", i)
			for _, header := range [][]string{{"X-Forwarded-For", forged}, {"X-Real-Ip", forged}, {"Forwarded", "for=" + forged}, {"True-Client-Ip", forged},
				{"X-Envoy-External-Address", forged}} {
				a := r.send("GET", "/address", "shop.example", header...)
				if a.status == "200" && passed < 2 {
					passed++
					continue
				}
				r.countForged(a)
			}
		}
		r.expect(passed == 2, "a client passed %d times; want 2", passed)
	}
}

// checkOthers sends requests that are limited by another key, and requests without a limit.
func (r *row) checkOthers() {
	token := "/token?token=" + r.recipe.key()
	for _, c := range []struct {
		what, want string // want: the status
		isLimited  bool   // a limit applies, so the response may have RateLimit
		got        answer
	}{
		{"a client with another key", "200", true, r.post("/api/things", "X-Api-Key", "b-"+r.recipe.key())},
		{"a token", "200", true, r.send("GET", token, "shop.example")},
		{"the same token", "429", true, r.send("GET", token, "shop.example")},
		{"another token", "200", true, r.send("GET", token+"-b", "shop.example")},
		{"a client on the deny list", "403", false, r.send("POST", "/api/things", "shop.example", "X-Api-Key", "banned")},
		{"an ambiguous path", "400", false, r.send("GET", "/a%2Fb", "shop.example")},
		{"a request without a limit", "200", false, r.send("GET", "/free?token=1", "shop.example", "X-Penstock-Ratelimit", "forged")},
		{"a request with another method", "200", false, r.send("DELETE", "/api/things", "shop.example")},
		{"a request for another host", "200", false, r.send("POST", "/api/things", "else.example")},
		{"a request with HEAD", "200", false, r.send("HEAD", "/free", "shop.example")},
	} {
		r.expect(c.got.status == c.want, "%s got %s; want %s", c.what, c.got.status, c.want)
		r.expect(c.isLimited || c.got.header["Ratelimit"] == nil, "%s got RateLimit %q; want none", c.what, c.got.header["Ratelimit"])
	}
	for what, body := range map[string]io.Reader{"with its length": strings.NewReader("hello"), "without its length": io.MultiReader(strings.NewReader("hello"))} {
		a := r.sendBody("PUT", "/api/things", "shop.example", body, "X-Api-Key", "b-"+r.recipe.key())
		r.expect(a.body == "app PUT /api/things hello", "a request with a body %s got %+v; want that the application gets the body", what, a)
	}
}

// checkOpened checks that a recipe that lets requests pass during a failure still applies
// Penstock's rejections.
func (r *row) checkOpened() {
	for _, a := range []answer{
		r.opened.post("/api/things"),
		r.opened.post("/api%2Fthings"),
		r.opened.post("/api/things", "X-Api-Key", "banned"),
		r.opened.post("/api/things", "X-Forwarded-Uri", "/free"),
		r.opened.post("/api/things", "X-Original-Uri", "/free"),
		r.opened.post("/api/things", "X-A", strings.Repeat("a", 7000), "X-B", strings.Repeat("b", 7000), "X-C", strings.Repeat("c", 7000)), // too large
	} {
		r.expect(slices.Contains([]string{"400", "403", "429", "431"}, a.status), "opened: %s got %s; want 400, 403, 429 or 431", a.request, a.status)
	}
}

// countForged counts answers to forged requests. Each must reject the request.
func (r *row) countForged(answers ...answer) {
	for _, a := range answers {
		r.allForged++
		if a.status == "429" || a.status == "400" || a.status == "404" {
			r.rejectedForged++
		} else {
			r.expect(false, "%s got %s; want 429, 400 or 404", a.request, a.status)
		}
	}
}

// checkWithoutStore sends requests while the store does not answer.
func (r *row) checkWithoutStore() (open, closed string) {
	a := r.send("GET", "/open", "shop.example", "X-Api-Key", "k")
	r.expect(a.status == "200" && a.header["Ratelimit"] == nil, "without the store, on_failure: open got %s with RateLimit %q; want 200 without it", a.status, a.header["Ratelimit"])
	b := r.send("GET", "/closed", "shop.example", "X-Api-Key", "k")
	r.expect(b.status == "503", "without the store, on_failure: closed got %s; want 503", b.status)
	if r.recipe.canStayClosed {
		c := r.opened.send("GET", "/closed", "shop.example", "X-Api-Key", "k")
		r.expect(c.status == "503", "opened: without the store, on_failure: closed got %s; want 503", c.status)
	}
	return a.status, b.status
}

// checkWithoutPenstock sends requests while Penstock does not answer. It returns the statuses of
// the recipe and of its opened copy.
func (r *row) checkWithoutPenstock(want string) (status, opened string) {
	status, opened = r.post("/api/things").status, "-"
	r.expect(status == want, "without Penstock: %s; want %s", status, want)
	if r.opened != nil {
		opened = r.opened.post("/api/things").status
		r.expect(opened == "200", "without Penstock, opened: %s; want 200", opened)
	}
	return status, opened
}

// expect records a failure if a check is not true.
func (r *row) expect(isTrue bool, format string, args ...any) {
	if !isTrue {
		r.failures = append(r.failures, r.recipe.title()+": "+fmt.Sprintf(format, args...))
	}
}

// An answer is the response that a client gets.
type answer struct {
	request, status, body string
	header                http.Header
}

// clientOf returns a client of the proxy. Its address ends with last. The proxy does not trust it.
func (r *row) clientOf(last int) *http.Client {
	return clientFrom(net.IPv4(127, 0, byte(r.number), byte(last)))
}

func clientFrom(address net.IP) *http.Client {
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: address}}
	return &http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableCompression: true, DialContext: dialer.DialContext}}
}

// send sends a request to the proxy without changing its target. header has names and values in
// turn. A target that begins with http:// is sent in absolute-form.
func (r *row) send(method, target, host string, header ...string) answer {
	return r.sendBody(method, target, host, nil, header...)
}

func (r *row) sendBody(method, target, host string, body io.Reader, header ...string) answer {
	request := method + " " + target
	req, err := http.NewRequest(method, "http://"+r.address, body)
	if err != nil {
		panic(err) // the arguments are constants
	}
	if absolute, ok := strings.CutPrefix(target, "http:"); ok {
		req.URL.Opaque = absolute
	} else if req.URL, err = url.ParseRequestURI(target); err != nil { // ParseRequestURI keeps the spelling of the path
		panic(err)
	}
	req.URL.Scheme, req.URL.Host, req.Host = "http", r.address, host
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
		request += fmt.Sprintf(" %s: %.40s", header[i], header[i+1])
	}
	response, err := r.client.Do(req)
	if err != nil {
		return answer{request: request, status: err.Error()}
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return answer{request: request, status: err.Error()}
	}
	return answer{request, fmt.Sprint(response.StatusCode), string(text), response.Header}
}
