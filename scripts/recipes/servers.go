package main

import (
	"errors"
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

	"github.com/penstock/penstock/internal/spellings"
)

// A nameServer is a server that changes the names of headers, parameters or cookies before its
// application reads them. The application responds with what it read as X-API-Key, as the parameter
// api_key and as the cookie s_id.
type nameServer struct {
	program string
	files   map[string]string                                     // by name; PORT stands for its port, and DIR for its folder
	args    func(dir, modules string, host, port string) []string // of the program
}

var nameServers = []nameServer{
	{
		program: "lighttpd", // with CGI
		files: map[string]string{
			"lighttpd.conf": `server.document-root = "DIR"
server.bind = "127.0.0.1"
server.port = PORT
server.modules = ("mod_cgi")
cgi.assign = (".sh" => "/bin/sh")
`,
			"app.sh": `printf 'Content-Type: text/plain\r\n\r\n%s %s' "$HTTP_X_API_KEY" "$REQUEST_METHOD"` + "\n",
		},
		args: func(dir, modules, _, _ string) []string {
			return []string{"-D", "-m", modules, "-f", dir + "/lighttpd.conf"}
		},
	},
	{
		program: "php", // its built-in server
		files: map[string]string{
			"app.php": `<?php foreach ([$_SERVER['HTTP_X_API_KEY'] ?? '', $_GET['api_key'] ?? '', $_COOKIE['s_id'] ?? ''] as $text) { echo is_string($text) ? $text : 'a list', ' '; }`,
		},
		args: func(dir, _, host, port string) []string {
			return []string{"-n", "-S", net.JoinHostPort(host, port), dir + "/app.php"}
		},
	},
	{
		program: "python3", // WSGI
		files: map[string]string{
			"app.py": `import sys, urllib.parse, wsgiref.simple_server
def app(environ, start):
    start("200 OK", [("Content-Type", "text/plain")])
    values = urllib.parse.parse_qs(environ["QUERY_STRING"]).get("api_key", [])
    return [" ".join([environ.get("HTTP_X_API_KEY", "")] + values).encode()]
wsgiref.simple_server.make_server(sys.argv[1], int(sys.argv[2]), app).serve_forever()
`,
		},
		args: func(dir, _, host, port string) []string { return []string{dir + "/app.py", host, port} },
	},
}

// policyOfNames has a deny list with a header, a parameter and a cookie.
const policyOfNames = `
deny: [{header X-API-Key: banned}, {query api_key: banned}, {cookie s_id: banned}]
rules: [{name: all, per: ip, limits: [{rate: 1M/s}]}]
`

// checkServers runs Penstock's own proxy in front of servers that change names. A client on the
// deny list sends its key under other names. No application may read the key. Servers that are not
// installed are left out.
func checkServers(dir, proxiesDir string, names []string) error {
	config := filepath.Join(dir, "names.yaml")
	if err := os.WriteFile(config, []byte(policyOfNames), 0o600); err != nil {
		return err
	}
	var failures []error
	for _, s := range nameServers {
		program, err := filepath.Abs(filepath.Join(proxiesDir, s.program))
		if err != nil {
			return err
		}
		if _, err := os.Stat(program); err != nil || !slices.Contains(names, s.program) {
			continue // scripts/proxies has reported it
		}
		failures = append(failures, s.check(dir, program, config))
	}
	return errors.Join(failures...)
}

// check runs one server alone and behind Penstock, and sends it the same requests.
func (s *nameServer) check(dir, program, config string) error {
	address := freeAddress()
	server, err := s.start(dir, program, address)
	if err != nil {
		return err
	}
	defer server.end()
	penstockAddress := freeAddress()
	cmd := exec.Command(filepath.Join(dir, "penstock"), "serve", "--config", config, "--upstream", "http://"+address, "--listen", penstockAddress, "--admin-listen", "off")
	penstock, err := start(dir, "penstock-"+s.program, penstockAddress, cmd)
	if err != nil {
		return err
	}
	defer penstock.end()

	sent, readAlone, readBehind := 0, 0, 0
	var failures []error
	try := func(target, name, value string) {
		sent++
		if _, body, err := get(address, target, name, value); err != nil {
			failures = append(failures, fmt.Errorf("%s: %s with %s: %w", s.program, target, name, err))
		} else if strings.Contains(body, "banned") {
			readAlone++
		}
		status, body, err := get(penstockAddress, target, name, value)
		if strings.Contains(body, "banned") {
			readBehind++
		}
		if err != nil || strings.Contains(body, "banned") || !slices.Contains([]int{200, 400, 403}, status) {
			failures = append(failures, fmt.Errorf("%s behind Penstock: %s with %s: %s got %d %q (error %v); want 400 or 403, or 200 without the key", s.program, target, name, value, status, body, err))
		}
	}
	for _, name := range append(spellings.Header("X-API-Key"), "X-API-Key", "X~API!Key", "X'API*Key") {
		try("/app.sh", name, "banned")
	}
	for _, query := range []string{
		"api_key=banned", "api_key%00=banned", "api_key%00x=banned", "api_%6bey=banned", "api_key[]=banned", "+api_key=banned", "api_key%00[a]=banned",
		"api.key=banned", "api+key=banned", "api[key=banned", "api%5Bkey=banned", "[api_key]=banned", "api_key]=banned", "api_key=banned#x", "a=b#&api_key=banned",
	} {
		try("/app.sh?"+query, "Accept", "text/plain")
	}
	for _, cookie := range []string{"s_id=banned", "s_id%00=banned", "s_%69d=banned", "s_id[]=banned", " s_id =banned", "s.id=banned", "s[id=banned"} {
		try("/app.sh", "Cookie", cookie)
	}
	fmt.Printf("%s read the key of a denied client in %d of %d requests alone, and in %d behind Penstock\n", s.program, readAlone, sent, readBehind)
	if readAlone < 2 {
		failures = append(failures, fmt.Errorf("%s read the key in %d requests without Penstock; want 2 or more, or the check shows nothing", s.program, readAlone))
	}
	return errors.Join(failures...)
}

// start starts the server at an address.
func (s *nameServer) start(dir, program, address string) (*process, error) {
	ownDir := filepath.Join(dir, s.program+".d")
	if err := os.MkdirAll(ownDir, 0o755); err != nil {
		return nil, err
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	for name, text := range s.files {
		text = strings.NewReplacer("DIR", ownDir, "PORT", port).Replace(text)
		if err := os.WriteFile(filepath.Join(ownDir, name), []byte(text), 0o644); err != nil {
			return nil, err
		}
	}
	modules := "/usr/lib/lighttpd"
	if unpacked := filepath.Join(filepath.Dir(program), "root", modules); isFolder(unpacked) {
		modules = unpacked
	}
	cmd := exec.Command(program, s.args(ownDir, modules, host, port)...)
	cmd.Dir = ownDir
	return start(dir, s.program, address, cmd)
}

func isFolder(name string) bool {
	info, err := os.Stat(name)
	return err == nil && info.IsDir()
}

// get sends a request with one further header. The target is sent exactly as given.
func get(address, target, name, value string) (status int, body string, err error) {
	path, query, _ := strings.Cut(target, "?")
	r := &http.Request{Method: "GET", Host: address, URL: &url.URL{Scheme: "http", Host: address, Opaque: path, RawQuery: query}, Header: http.Header{name: {value}}}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return response.StatusCode, string(text), err
}
