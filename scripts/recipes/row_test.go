//go:build checks

package recipes

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
	"testing"
	"time"

	"github.com/penstock/penstock/internal/testing/spellings"
	"github.com/penstock/penstock/scripts/internal/process"
)

// A row runs a proxy and its clients. It has their results, for a row of the table.
type row struct {
	t       *testing.T
	recipe  recipe
	address string
	proxy   *process.Process
	app     string // address of the application
	client  *http.Client
	number  int // from 1; a part of the addresses of its clients

	isLenient bool // the recipe lets requests pass while Penstock does not answer
	lenient   *row // the same proxy with a lenient recipe; nil: the proxy cannot be lenient

	// The results, which are the columns of the table. hungLenient and killedLenient are results of
	// the lenient proxy.
	passed, denied             string // how many requests passed; the status of a denial
	retryAfter, limits         string // the header Retry-After of a denial; whether allowed responses have RateLimit
	killedOpen, killedClosed   string // while the store is killed: the status with on_failure open and closed
	hangingOpen, hangingClosed string // while the store hangs: the status with on_failure open and closed
	rejectedForged, allForged  int    // forged requests that were rejected; all forged requests
	names, dropped             int    // names that an application may read as X-API-Key; those that the proxy dropped
	hung, hungLenient          string // while Penstock hangs: the status
	killed, killedLenient      string // while Penstock is killed: the status
}

// usualClient is the last byte of the address from which a row sends most requests.
const usualClient = 9

func newRow(t *testing.T, recipe recipe, app string, number int) *row {
	r := &row{t: t, recipe: recipe, app: app, address: process.FreeAddress(t), number: number}
	r.client = r.clientOf(usualClient)
	return r
}

// start runs the proxy with its recipe. It replaces the addresses in the recipe.
func (r *row) start(dir, program string, penstock *process.Service) {
	name := r.recipe.key()
	if r.isLenient {
		name += "-lenient"
	}
	ownDir := filepath.Join(dir, name)
	var replaced []string // pairs: addresses of the recipe and of this machine
	for portInRecipe, address := range map[string]string{"8080": r.address, "3000": r.app, "8181": penstock.API, "8081": penstock.GRPC} {
		for _, before := range []string{"//:", "port_value: "} {
			replaced = append(replaced, before+portInRecipe, before+portOf(address))
		}
		replaced = append(replaced, "127.0.0.1:"+portInRecipe, address)
	}
	for _, file := range r.recipe.files {
		text := strings.NewReplacer(replaced...).Replace(process.ReadFile(r.t, recipesDir+file))
		if r.isLenient && file == r.recipe.files[0] {
			lenient := r.recipe.makeLenient(text)
			if lenient == text {
				r.t.Errorf("%s has no line that can be changed so that requests pass without Penstock", file)
			}
			text = lenient
		}
		if r.recipe.adapt != nil {
			text = r.recipe.adapt(text)
		}
		process.WriteFile(r.t, filepath.Join(ownDir, file), text)
	}
	cmd := exec.Command(program, r.recipe.args(ownDir, r.address)...)
	cmd.Dir = ownDir
	cmd.Env = append(os.Environ(), "HOME="+ownDir, "XDG_CONFIG_HOME="+ownDir, "XDG_DATA_HOME="+ownDir)
	r.proxy = start(r.t, name, r.address, cmd)
	// Traefik listens before it has read its routes.
	r.proxy.Await("it routes requests to the application", func() error {
		if a := r.send("GET", "/free", "shop.example"); a.body != "app GET /free " {
			return fmt.Errorf("the response is %+v", a)
		}
		return nil
	})
}

// checkWhileUp sends requests while the store answers.
func (r *row) checkWhileUp() {
	r.checkLimit()
	r.checkForged()
	r.checkNames()
	r.checkAddresses()
	r.expect(r.rejectedForged == r.allForged, "%d of %d forged requests were rejected; want all", r.rejectedForged, r.allForged)
	r.checkHeaders()
	r.checkOthers()
	if r.recipe.checks != nil {
		r.recipe.checks(r)
	}
	if r.lenient != nil {
		r.checkLenient()
	}
}

// post sends a request that the rule shop limits, with the row's own key.
func (r *row) post(path string, header ...string) answer {
	return r.send("POST", path, "shop.example", append([]string{"X-Api-Key", "a-" + r.recipe.key()}, header...)...)
}

// checkLimit uses up the limit of the row's key.
func (r *row) checkLimit() {
	passed := 0
	withHeader := 0 // requests whose response has the right RateLimit
	for remaining := 2; remaining >= 0; remaining-- {
		a := r.post("/api/things?x=1")
		r.expect(a.status == "200" && a.body == "app POST /api/things?x=1 ", "an allowed request got %+v; want 200 and the body of the application", a)
		if a.status == "200" {
			passed++
		}
		if strings.HasPrefix(a.header.Get("RateLimit"), fmt.Sprintf(`"shop.hour";r=%d;`, remaining)) {
			withHeader++
		}
	}
	r.passed = fmt.Sprintf("%d of 3", passed)
	r.limits = "on denials"
	if withHeader == 3 {
		r.limits = "yes"
	}
	wantWithHeader := 0
	if r.recipe.hasLimits {
		wantWithHeader = 3
	}
	r.expect(withHeader == wantWithHeader, "the responses to %d of 3 allowed requests have the right RateLimit; want %d", withHeader, wantWithHeader)

	a := r.post("/api/things?x=1")
	r.denied, r.retryAfter = a.status, a.header.Get("Retry-After")
	r.expect(r.denied == "429", "a request over the limit got status %s; want 429", r.denied)
	r.expect(r.retryAfter == "1200", "Retry-After is %q; want 1200 seconds, a third of an hour", r.retryAfter)
	r.expect(strings.HasPrefix(a.header.Get("RateLimit"), `"shop.hour";r=0;`), "a denial has RateLimit %q; want \"shop.hour\";r=0;…", a.header.Get("RateLimit"))
	contentType := a.header.Get("Content-Type")
	r.expect(contentType == "application/problem+json" && strings.Contains(a.body, `"status":429`),
		"a denial has the body %q of type %q; want application/problem+json with status 429", a.body, contentType)
}

// checkHeaders checks that clients get all headers of Penstock, and none twice. The application
// sends RateLimit too.
func (r *row) checkHeaders() {
	for _, want := range []struct{ status, origin, credentials, vary string }{
		{status: "200"}, // the application decides which pages may read its response
		{status: "429", origin: "https://app.example", credentials: "true", vary: "Origin"},
	} {
		a := r.send("GET", "/own", "shop.example", "X-Api-Key", "own-"+r.recipe.key(), "Origin", "https://app.example")
		r.expect(a.status == want.status, "%s got status %s; want %s", a.request, a.status, want.status)
		if a.status == "200" && !r.recipe.hasAllHeaders {
			continue
		}
		for name, prefix := range map[string]string{
			"Ratelimit": `"own.hour";r=0;`, "Ratelimit-Policy": `"own.hour";q=1;`, "X-Ratelimit-Limit": "1", "X-Ratelimit-Remaining": "0", "X-Ratelimit-Reset": "1",
			"Access-Control-Allow-Origin": want.origin, "Access-Control-Allow-Credentials": want.credentials, "Vary": want.vary, "Access-Control-Expose-Headers": "RateLimit",
		} {
			values := a.header[name]
			isRight := len(values) == 1 && strings.HasPrefix(values[0], prefix)
			r.expect(isRight || prefix == "" && values == nil, "a response with %s has %s %q; want one that begins with %q", want.status, name, values, prefix)
		}
	}
}

// checkForged sends requests over the limit. It checks that none passes, however its path is
// spelled and whatever headers it has.
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

// checkNames sends the key of a client on the deny list under names that the application reads as
// X-API-Key. Each request must be rejected, or reach the application without the key.
func (r *row) checkNames() {
	for _, name := range append(spellings.Header("X-API-Key"), "X-API-Key") {
		a := r.send("GET", "/free", "shop.example", name, "banned")
		isRejected := slices.Contains([]string{"400", "403", "404", "431"}, a.status)
		isDropped := a.status == "200" && a.header["X-App-Key"] == nil
		r.expect(isRejected || isDropped, "%s got status %s, and the application saw the key %q; want 400, or 200 without the key", a.request, a.status, a.header["X-App-Key"])
		r.names++
		if isDropped {
			r.dropped++
		}
	}
}

// checkAddresses checks that each client of the proxy is limited by its true address, even if it
// sends headers with other addresses. The application must get this address and the host.
func (r *row) checkAddresses() {
	usual := r.client
	defer func() { r.client = usual }()
	for _, lastByte := range []int{10, 11} {
		r.client = r.clientOf(lastByte)
		address := r.addressOf(lastByte).String()
		passed := 0
		for i := range 6 {
			forged := fmt.Sprintf("203.0.113.%d", i)
			for _, header := range [][]string{
				{"X-Forwarded-For", forged}, {"X-Real-Ip", forged}, {"Forwarded", "for=" + forged},
				{"True-Client-Ip", forged}, {"X-Envoy-External-Address", forged},
			} {
				a := r.send("GET", "/address", "shop.example", header...)
				if a.status == "200" && passed < 2 { // within the limit of the rule address
					passed++
					wantFor := address
					if r.recipe.keepsForged && header[0] == "X-Forwarded-For" {
						wantFor = forged + "," + address
					}
					host, gotFor := a.header.Get("X-App-Host"), a.header.Get("X-App-For")
					r.expect(host == "shop.example", "the application got the host %q; want shop.example", host)
					r.expect(gotFor == wantFor, "the application got X-Forwarded-For %q of the request %s; want %q", gotFor, a.request, wantFor)
					continue
				}
				r.countForged(a)
			}
		}
		r.expect(passed == 2, "%d requests of one client passed; want 2, the limit of an address", passed)
	}
}

// checkOthers sends requests with other keys, requests that Penstock rejects for other reasons than
// a limit, and requests without a limit.
func (r *row) checkOthers() {
	token := "/token?token=" + r.recipe.key()
	for _, c := range []struct {
		what      string
		want      string // status
		isLimited bool   // a limit applies, so the response may have RateLimit
		got       answer
	}{
		{what: "a client with another key", want: "200", isLimited: true, got: r.post("/api/things", "X-Api-Key", "b-"+r.recipe.key())},
		{what: "a token", want: "200", isLimited: true, got: r.send("GET", token, "shop.example")},
		{what: "the same token", want: "429", isLimited: true, got: r.send("GET", token, "shop.example")},
		{what: "a NUL in the name of a parameter", want: "400", got: r.send("GET", strings.Replace(token, "?token=", "?token%00=", 1), "shop.example")},
		{what: "another token", want: "200", isLimited: true, got: r.send("GET", token+"-b", "shop.example")},
		{what: "a client on the deny list", want: "403", got: r.send("POST", "/api/things", "shop.example", "X-Api-Key", "banned")},
		{what: "an ambiguous path", want: "400", got: r.send("GET", "/a%2Fb", "shop.example")},
		{what: "a request without a limit", want: "200", got: r.send("GET", "/free?token=1", "shop.example", "X-Penstock-Ratelimit", "forged")},
		{what: "a request with another method", want: "200", got: r.send("DELETE", "/api/things", "shop.example")},
		{what: "a request for another host", want: "200", got: r.send("POST", "/api/things", "else.example")},
		{what: "a request with HEAD", want: "200", got: r.send("HEAD", "/free", "shop.example")},
	} {
		r.expect(c.got.status == c.want, "%s got status %s; want %s", c.what, c.got.status, c.want)
		r.expect(c.isLimited || c.got.header["Ratelimit"] == nil, "%s got RateLimit %q; want none", c.what, c.got.header["Ratelimit"])
	}
	for what, body := range map[string]io.Reader{
		"with its length":    strings.NewReader("hello"),
		"without its length": io.MultiReader(strings.NewReader("hello")), // net/http does not know the length of this type
	} {
		a := r.sendBody("PUT", "/api/things", "shop.example", body, "X-Api-Key", "b-"+r.recipe.key())
		r.expect(a.body == "app PUT /api/things hello", "a request with a body %s got %+v; want that the application gets the body", what, a)
	}
}

// checkLenient checks that the lenient proxy applies Penstock's rejections while Penstock answers.
func (r *row) checkLenient() {
	answers := []answer{
		r.lenient.post("/api/things"),
		r.lenient.post("/api%2Fthings"),
		r.lenient.post("/api/things", "X-Api-Key", "banned"),
		r.lenient.post("/api/things", "X-Forwarded-Uri", "/free"),
		r.lenient.post("/api/things", "X-Original-Uri", "/free"),
		// Headers of 21,000 bytes are too large.
		r.lenient.post("/api/things", "X-A", strings.Repeat("a", 7000), "X-B", strings.Repeat("b", 7000), "X-C", strings.Repeat("c", 7000)),
	}
	// HAProxy accepts at most 101 headers. A script must not crash shortly before this bound.
	var many []string
	for i := range 101 {
		many = append(many, fmt.Sprintf("X-%d", i), "a")
		if i >= 90 {
			answers = append(answers, r.lenient.post("/api/things", many...))
		}
	}
	for _, a := range answers {
		r.expect(slices.Contains([]string{"400", "403", "429", "431"}, a.status), "with the lenient recipe, %s got status %s; want 400, 403, 429 or 431", a.request, a.status)
	}
}

// countForged counts the answer to a forged request. It must be a rejection.
func (r *row) countForged(a answer) {
	r.allForged++
	isRejected := slices.Contains([]string{"429", "400", "404"}, a.status)
	if isRejected {
		r.rejectedForged++
	}
	r.expect(isRejected, "the forged request %s got status %s; want 429, 400 or 404", a.request, a.status)
}

// checkWithoutStore sends requests while the store does not answer. It returns the statuses with
// on_failure open and closed.
func (r *row) checkWithoutStore() (open, closed string) {
	a := r.send("GET", "/open", "shop.example", "X-Api-Key", "k")
	r.expect(a.status == "200" && a.header["Ratelimit"] == nil, "without the store, on_failure: open got %s with RateLimit %q; want 200 without RateLimit", a.status, a.header["Ratelimit"])
	b := r.send("GET", "/closed", "shop.example", "X-Api-Key", "k")
	r.expect(b.status == "503", "without the store, on_failure: closed got %s; want 503", b.status)
	if r.recipe.isClosedWhenLenient {
		c := r.lenient.send("GET", "/closed", "shop.example", "X-Api-Key", "k")
		r.expect(c.status == "503", "with the lenient recipe and without the store, on_failure: closed got %s; want 503", c.status)
	}
	return a.status, b.status
}

// checkWithoutPenstock sends requests while Penstock does not answer. It returns the statuses of
// the proxy and of the lenient proxy. Without a lenient proxy, the second status is "-". The proxy
// must answer after the time that the documentation names.
func (r *row) checkWithoutPenstock(want string, after time.Duration) (status, lenient string) {
	const delay = 2 * time.Second // of a busy machine
	send := func(r *row) (status string, isInTime bool) {
		start := time.Now()
		return r.sendWhenHung().status, time.Since(start) < after+delay
	}
	status, isInTime := send(r)
	r.expect(status == want && isInTime, "without Penstock, a request got status %s (in time: %t); want %s after %v", status, isInTime, want, after)
	if r.lenient == nil {
		return status, "-"
	}
	lenient, isInTime = send(r.lenient)
	r.expect(lenient == "200" && isInTime, "without Penstock, a request got status %s (in time: %t) with the lenient recipe; want 200 after %v", lenient, isInTime, after)
	return status, lenient
}

// sendWhenHung sends a request that the rule hung limits, with the row's own key.
func (r *row) sendWhenHung() answer {
	return r.send("GET", "/hung", "shop.example", "X-Api-Key", r.recipe.key())
}

// expect fails the test if a check is not true.
func (r *row) expect(isTrue bool, format string, args ...any) {
	if !isTrue {
		r.t.Errorf(r.recipe.title()+": "+format, args...)
	}
}

// An answer is the response that a client gets.
type answer struct {
	request string // method, target and the first headers of the request
	status  string // number, or the error if there is no response
	body    string
	header  http.Header
}

// clientOf returns a client of the proxy whose address ends with lastByte. The proxy does not trust
// this address.
func (r *row) clientOf(lastByte int) *http.Client {
	return clientFrom(r.addressOf(lastByte))
}

func (r *row) addressOf(lastByte int) net.IP { return net.IPv4(127, 0, byte(r.number), byte(lastByte)) }

// clientFrom returns a client that sends requests from an address.
func clientFrom(address net.IP) *http.Client {
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: address}}
	return &http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableCompression: true, DialContext: dialer.DialContext}}
}

// send sends a request to the proxy, with the target exactly as given. header has a name, its
// value, the next name, and so on. A target that begins with http:// is sent in absolute-form.
func (r *row) send(method, target, host string, header ...string) answer {
	return r.sendBody(method, target, host, nil, header...)
}

// sendBody is send with a body.
func (r *row) sendBody(method, target, host string, body io.Reader, header ...string) answer {
	request := method + " " + target
	req, err := http.NewRequest(method, "http://"+r.address, body)
	if err != nil {
		panic(err) // the arguments are constants
	}
	if absolute, ok := strings.CutPrefix(target, "http:"); ok {
		req.URL.Opaque = absolute
	} else if req.URL, err = url.ParseRequestURI(target); err != nil { // it keeps the spelling of the path
		panic(err)
	}
	req.URL.Scheme, req.URL.Host, req.Host = "http", r.address, host
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
		if i < 8 {
			request += fmt.Sprintf(" %s: %.40s", header[i], header[i+1])
		}
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
