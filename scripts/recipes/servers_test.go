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

	"github.com/penstock/penstock/internal/testing/spellings"
	"github.com/penstock/penstock/scripts/internal/process"
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

// Penstock's own proxy is in front of servers that change names. A client on the deny list sends
// its key under other names. No application may read the key.
func TestNamesOfServers(t *testing.T) {
	config := filepath.Join(t.TempDir(), "names.yaml")
	process.WriteFile(t, config, policyOfNames)
	for _, s := range nameServers {
		t.Run(s.program, func(t *testing.T) {
			server := s.start(t, programOf(t, s.program))
			penstock := process.Serve(t, "--config="+config, "--upstream=http://"+server, "--listen=127.0.0.1:0").Listen
			sent, readAlone, readBehind := 0, 0, 0
			try := func(target, name, value string) {
				sent++
				if _, body, err := get(server, target, name, value); err != nil {
					t.Errorf("%s with %s: %v", target, name, err)
				} else if strings.Contains(body, "banned") {
					readAlone++
				}
				status, body, err := get(penstock, target, name, value)
				if strings.Contains(body, "banned") {
					readBehind++
				}
				if err != nil || strings.Contains(body, "banned") || !slices.Contains([]int{200, 400, 403}, status) {
					t.Errorf("behind Penstock: %s with %s: %s got %d %q (error %v); want 400 or 403, or 200 without the key", target, name, value, status, body, err)
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
				t.Errorf("the server read the key in %d requests without Penstock; want 2 or more, or the check shows nothing", readAlone)
			}
		})
	}
}

// start starts the server, and returns its address.
func (s *nameServer) start(t *testing.T, program string) (address string) {
	dir, address := t.TempDir(), process.FreeAddress(t)
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range s.files {
		process.WriteFile(t, filepath.Join(dir, name), strings.NewReplacer("DIR", dir, "PORT", port).Replace(text))
	}
	modules := "/usr/lib/lighttpd"
	if unpacked := filepath.Join(filepath.Dir(program), "root", modules); isFolder(unpacked) {
		modules = unpacked
	}
	cmd := exec.Command(program, s.args(dir, modules, host, port)...)
	cmd.Dir = dir
	start(t, s.program, address, cmd)
	return address
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
