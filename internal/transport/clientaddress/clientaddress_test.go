package clientaddress

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/testing/effort"
)

// In these tests trusted proxies are in 10.0.0.0/8 or 2001:db8:10::/48. The attacker has the
// address 203.0.113.7, and forges the address of the victim, 198.51.100.9.
var proxies = []string{"10.0.0.0/8", "2001:db8:10::/48"}

// mustTrust returns Proxies that trust these networks. The default header is X-Forwarded-For.
func mustTrust(t testing.TB, header string, trusted ...string) *Proxies {
	t.Helper()
	for _, text := range trusted {
		if _, err := ParseNetwork(text); err != nil && text != "unix" {
			t.Fatalf("the network %q %v", text, err)
		}
	}
	if header == "" {
		header = "X-Forwarded-For"
	}
	return New(trusted, http.CanonicalHeaderKey(header))
}

// clientOf returns the client of a request.
func clientOf(p *Proxies, r *http.Request) netip.Addr {
	return p.Client(PeerOf(r.RemoteAddr), r.Header)
}

func request(remote, header string, lines ...string) *http.Request {
	return &http.Request{RemoteAddr: remote, Header: http.Header{header: lines}}
}

// forgeries are lines that an attacker may write into a header. A line has the address of another
// client, no address, or text that could break a parser.
var forgeries = [][]string{
	{"198.51.100.9"}, {"198.51.100.9:80"}, {" 198.51.100.9 "}, {"\t198.51.100.9\t"}, {`"198.51.100.9"`}, {`"198.51.100.9:80"`},
	{"[198.51.100.9]"}, {"::ffff:198.51.100.9"}, {"[::ffff:198.51.100.9]"}, {"[::ffff:c633:6409]:80"}, {"64:ff9b::198.51.100.9"},
	{"2001:db8::9"}, {"[2001:db8::9]"}, {"[2001:db8::9]:443"}, {`"[2001:db8::9]:443"`}, {"fe80::1%eth0"}, {"[fe80::1%25eth0]:1"},
	{"::1"}, {"127.0.0.1"}, {"10.0.0.1"}, {"2001:db8:10::1"}, {"0.0.0.0"}, {"::"}, {"198.51.100.9, 10.0.0.1"},
	{"198.51.100.9,10.0.0.1,10.0.0.2"}, {"10.0.0.1, 198.51.100.9"}, {"198.51.100.9", "10.0.0.1"}, {"198.51.100.9", "198.51.100.9"},
	{"198.51.100.9", ""}, {"", "198.51.100.9"}, {"198.51.100.9,"}, {",198.51.100.9"}, {", , ,"}, {""}, {" "}, {","}, {"unknown"},
	{"unknown, 198.51.100.9"}, {"_hidden"}, {"_hidden:80"}, {"unix:"}, {"localhost"}, {"-"}, {"null"}, {"(198.51.100.9)"},
	{"198.51.100.009"}, {"198.51.100"}, {"3325256713"}, {"0xc6336409"}, {"198.51.100.9.1"}, {"198.51.100.256"}, {"198.51.100.9/32"},
	{"198.51.100.9:port"}, {"198.51.100.9:99999"}, {"198.51.100.9:"}, {"[2001:db8::9"}, {"2001:db8::9]"}, {"[2001:db8::9]443"}, {"[]"},
	{`"`}, {`"198.51.100.9`}, {`198.51.100.9"`}, {`""`}, {"198.51.100.9\r\nX-Real-IP: 198.51.100.9"}, {"198.51.100.9\x00"},
	{"１９８.51.100.9"}, {"%31%39%38.51.100.9"}, {"198.51.100.9;198.51.100.9"}, {"for=198.51.100.9"}, {"for=198.51.100.9, for=10.0.0.1"},
	{`for="198.51.100.9`}, {`for="\`}, {`for="a\", for=198.51.100.9`}, {`for="[2001:db8::9]:80"`}, {"for="},
	{"For=198.51.100.9;proto=https;by=10.0.0.1"}, {"for=198.51.100.9;for=198.51.100.9"}, {`for="198.51.100.9", `}, {"for=unknown"},
	{"for=_x"}, {`by="`}, {`"for=198.51.100.9"`}, {"for =198.51.100.9"}, {"for= 198.51.100.9"}, {";;;for=198.51.100.9;;"},
	{"=198.51.100.9"}, {`host="x", for=198.51.100.9`}, {`for="198.51.100.9\"`}, {`\`}, {`\"`},
	{strings.Repeat("198.51.100.9, ", 100) + "198.51.100.9"}, {strings.Repeat("10.0.0.1, ", 100) + "10.0.0.1"},
	{strings.Repeat(",", 10_000)}, {strings.Repeat("a", 100_000)}, {strings.Repeat(`"`, 10_001)}, {strings.Repeat(`\`, 10_001)},
	slices.Repeat([]string{"198.51.100.9"}, 100),
}

// lists has the headers that are lists, each with two forms in which proxies append an address.
var lists = []struct {
	header string
	append string // the form: a format for the address
}{
	{"X-Forwarded-For", "%s"},
	{"X-Forwarded-For", " %s:5555 "},
	{"Forwarded", "for=%s"},
	{"Forwarded", `by="[2001:db8:10::1]";for="%s:5555";host="a\\\", for=198.51.100.9;b=\"";proto=https`},
}

func TestForgedHeadersDoNotChangeAClientWithoutProxy(t *testing.T) {
	t.Parallel()
	n := 0
	for _, header := range []string{"X-Forwarded-For", "Forwarded", "X-Real-Ip", "Cf-Connecting-Ip"} {
		for _, p := range []*Proxies{mustTrust(t, header, proxies...), mustTrust(t, header, "unix"), mustTrust(t, "")} {
			for remote, want := range map[string]string{
				"203.0.113.7:5555": "203.0.113.7", "[::ffff:203.0.113.7]:5555": "203.0.113.7", "[2001:db8::7]:5555": "2001:db8::7",
				"[fe80::7%eth0]:1": "fe80::7",
			} {
				for _, lines := range forgeries {
					if got := clientOf(p, request(remote, header, lines...)); got.String() != want {
						t.Errorf("%s from %s makes the client %s; want %s\n%.300q", header, remote, got, want, lines)
					}
					n++
				}
			}
		}
	}
	// Behind a proxy, only the configured header is read.
	p := mustTrust(t, "", proxies...)
	for _, header := range []string{"Forwarded", "X-Real-Ip", "Cf-Connecting-Ip", "True-Client-Ip", "X-Forwarded", "Via", "x-forwarded-for"} {
		for _, lines := range forgeries {
			if got := clientOf(p, request("10.0.0.1:80", header, lines...)); got.String() != "10.0.0.1" {
				t.Errorf("%s, which is not the configured header, makes the client %s; want the proxy, 10.0.0.1\n%.300q", header, got, lines)
			}
			n++
		}
	}
	t.Logf("counted: %d forged headers (%d forms)", n, len(forgeries))
}

// appended returns the ways in which proxies append hops to the attacker's lines: as further lines,
// or to the last line.
func appended(lines []string, hops ...string) (passed [][]string) {
	last := max(0, len(lines)-1)
	lastLine := strings.Join(lines[last:], "") // empty if there is no line
	return [][]string{
		append(slices.Clone(lines), hops...),
		append(slices.Clone(lines), strings.Join(hops, ", ")),
		append(slices.Clone(lines[:last]), lastLine+", "+strings.Join(hops, ", ")),
		append(slices.Clone(lines[:last]), lastLine+","+strings.Join(hops, ",")),
		{strings.Join(append(slices.Clone(lines), hops...), ", ")},
	}
}

func TestForgedHeadersDoNotChangeAClientBehindAProxy(t *testing.T) {
	effort.SkipUnderRace(t)
	t.Parallel()
	seed := effort.Seed()
	r := rand.New(rand.NewPCG(seed, 0))
	headers := slices.Clone(forgeries)
	for range 500 { // random addresses too, so that an attacker has a new one in each request
		forged := netip.AddrFrom4([4]byte{byte(r.Uint32()), byte(r.Uint32()), byte(r.Uint32()), byte(r.Uint32())}).String()
		headers = append(headers, []string{forged}, []string{forged, forged + ", 10.0.0.1"})
		headers = append(headers, []string{"for=" + forged}, []string{`for="` + forged})
	}
	n := 0
	for _, list := range lists {
		p := mustTrust(t, list.header, proxies...)
		attacker := fmt.Sprintf(list.append, "203.0.113.7")
		proxy := fmt.Sprintf(list.append, "10.0.0.2")
		for _, lines := range headers {
			variants := slices.Concat(appended(lines, attacker), appended(lines, attacker, proxy), appended(lines, attacker, proxy, proxy))
			for _, passed := range variants {
				if got := clientOf(p, request("10.0.0.1:80", list.header, passed...)); got.String() != "203.0.113.7" {
					t.Errorf("%s makes the client %s; want the attacker, 203.0.113.7 (seed %d)\n%.300q", list.header, got, seed, passed)
				}
				n++
			}
		}
	}
	t.Logf("counted: %d forged headers (behind proxies, seed %d)", n, seed)
}

func TestTheClientIsTheRightmostAddressThatIsNotATrustedProxy(t *testing.T) {
	t.Parallel()
	const peer = "10.0.0.1"
	n := 0
	for _, row := range []struct {
		header string
		want   map[string]string // the client, by the lines of the header, which are separated by |
	}{
		{"X-Forwarded-For", map[string]string{
			"203.0.113.7":                         "203.0.113.7",
			"203.0.113.7:80":                      "203.0.113.7",
			"203.0.113.7:_port":                   "203.0.113.7",
			"  203.0.113.7\t":                     "203.0.113.7",
			`"203.0.113.7"`:                       "203.0.113.7",
			"::ffff:203.0.113.7":                  "203.0.113.7",
			"[::ffff:203.0.113.7]:1":              "203.0.113.7",
			"::ffff:cb00:7107%eth0":               "203.0.113.7",
			"2001:DB8:0::7":                       "2001:db8::7",
			"[2001:db8::7]":                       "2001:db8::7",
			`"[2001:db8::7]:443"`:                 "2001:db8::7",
			"fe80::7%eth0":                        "fe80::7",
			"[fe80::7%25eth0]:80":                 "fe80::7",
			"198.51.100.9, 203.0.113.7":           "203.0.113.7",
			"198.51.100.9, 203.0.113.7, 10.9.9.9": "203.0.113.7",
			"198.51.100.9|203.0.113.7|10.9.9.9":   "203.0.113.7",
			"198.51.100.9|203.0.113.7, 10.9.9.9|10.1.1.1, 2001:db8:10:ffff::1": "203.0.113.7",
			"203.0.113.7, ::ffff:10.9.9.9":                                     "203.0.113.7",
			"203.0.113.7,[2001:db8:10::1%eth0]:80":                             "203.0.113.7",
			"10.1.1.1":                                                         "10.1.1.1",
			"10.1.1.1, 10.2.2.2|10.3.3.3":                                      "10.1.1.1",
			"unknown, 203.0.113.7":                                             "203.0.113.7",
			"|203.0.113.7":                                                     "203.0.113.7",
			// Malformed elements to the right of the client make the peer the client.
			"":                            peer,
			" ":                           peer,
			"203.0.113.7,":                peer,
			"203.0.113.7, , 10.1.1.1":     peer,
			"203.0.113.7|":                peer,
			"203.0.113.7, unknown":        peer,
			"203.0.113.7, _x, 10.1.1.1":   peer,
			"unknown, 10.1.1.1":           peer,
			", 10.1.1.1":                  peer,
			"203.0.113.7, 10.1.1":         peer,
			"203.0.113.7, 010.1.1.1":      peer,
			"203.0.113.7 10.1.1.1":        peer,
			"203.0.113.7;10.1.1.1":        peer,
			"203.0.113.7:":                peer,
			"203.0.113.7:x":               peer,
			"203.0.113.7:65536":           peer,
			"203.0.113.7:-1":              peer,
			"203.0.113.7:_":               peer,
			"203.0.113.7:_a b":            peer,
			"203.0.113.7%eth0":            peer,
			"fe80::7%":                    peer,
			"fe80::7% 203.0.113.7":        peer,
			`fe80::7%"`:                   peer,
			"[203.0.113.7]:80":            peer,
			"[2001:db8::7":                peer,
			"[2001:db8::7]80":             peer,
			"[2001:db8::7]:":              peer,
			"[[2001:db8::7]]":             peer,
			"2001:db8::7]:80":             peer,
			`"203.0.113.7`:                peer,
			`""203.0.113.7""`:             peer,
			`"198.51.100.9, 203.0.113.7"`: peer,
			"for=203.0.113.7":             peer,
			"unix:":                       peer,
		}},
		{"Forwarded", map[string]string{
			"for=203.0.113.7":                                 "203.0.113.7",
			"For=203.0.113.7":                                 "203.0.113.7",
			`FOR="203.0.113.7:80"`:                            "203.0.113.7",
			`for="203.0.113.7:_port"`:                         "203.0.113.7",
			"for=203.0.113.7:80":                              "203.0.113.7",
			`for="[2001:db8:cafe::17]:4711"`:                  "2001:db8:cafe::17",
			`for="[2001:db8:cafe::17]"`:                       "2001:db8:cafe::17",
			"for=[2001:db8:cafe::17]":                         "2001:db8:cafe::17",
			`for="[::ffff:203.0.113.7]"`:                      "203.0.113.7",
			"for=203.0.113.7;proto=http;by=203.0.113.43":      "203.0.113.7",
			"by=198.51.100.9 ; for=203.0.113.7 ;proto=http":   "203.0.113.7",
			";for=203.0.113.7;;":                              "203.0.113.7",
			`host="a,b;for=198.51.100.9";for=203.0.113.7`:     "203.0.113.7",
			`for=203.0.113.7;host="a\", for=198.51.100.9\\"`:  "203.0.113.7",
			`for=203.0.113.7;host=""`:                         "203.0.113.7",
			"for=198.51.100.9, for=203.0.113.7":               "203.0.113.7",
			"for=198.51.100.9,for=203.0.113.7, for=10.1.1.1":  "203.0.113.7",
			`for=198.51.100.9|for=203.0.113.7|for="10.1.1.1"`: "203.0.113.7",
			`for="198.51.100.9, for=203.0.113.7`:              "203.0.113.7",
			`for="[2001:db8::9]", for=203.0.113.7;by="_x,y"`:  "203.0.113.7",
			"for=unknown, for=203.0.113.7":                    "203.0.113.7",
			"for=10.1.1.1, for=10.2.2.2":                      "10.1.1.1",
			"":                                                peer,
			"for=":                                            peer,
			`for=""`:                                          peer,
			"for":                                             peer,
			"203.0.113.7":                                     peer,
			"for=unknown":                                     peer,
			`for="unknown:80"`:                                peer,
			"for=_gazonk":                                     peer,
			`for="_SEVKISEK:80"`:                              peer,
			"for=203.0.113.7, for=_secret":                    peer,
			"for=203.0.113.7, proto=https":                    peer,
			"for=203.0.113.7, ":                               peer,
			"for=203.0.113.7|":                                peer,
			"for=203.0.113.7;for=198.51.100.9":                peer,
			"for=203.0.113.7;FOR=203.0.113.7":                 peer,
			"for=203.0.113.7;proto":                           peer,
			"for=203.0.113.7;=x":                              peer,
			"for = 203.0.113.7":                               peer,
			"for= 203.0.113.7":                                peer,
			`for="203.0.113.7`:                                peer,
			`for=203.0.113.7"`:                                peer,
			`for="203.0.113.7"x`:                              peer,
			`for="203.0.113.7" proto=https`:                   peer,
			`for="203.0.113.7\"`:                              peer,
			`for="\203.0.113.7"`:                              peer,
			`for=203.0.113.7;host="a`:                         peer,
			`for=203.0.113.7, for="a`:                         peer,
			`"for=203.0.113.7"`:                               peer,
			"for=203.0.113.7 for=198.51.100.9":                peer,
		}},
		{"X-Real-Ip", map[string]string{
			"203.0.113.7":              "203.0.113.7",
			" [2001:db8::7]:80 ":       "2001:db8::7",
			"::ffff:203.0.113.7":       "203.0.113.7",
			"10.1.1.1":                 "10.1.1.1",
			"":                         peer,
			"203.0.113.7, 10.1.1.1":    peer,
			"203.0.113.7|203.0.113.7":  peer,
			"203.0.113.7|":             peer,
			"203.0.113.7 198.51.100.9": peer,
			strings.Repeat(" ", maxListBytes-len("203.0.113.7")) + "203.0.113.7":   "203.0.113.7",
			strings.Repeat(" ", maxListBytes-len("203.0.113.7")+1) + "203.0.113.7": peer,
			"unknown":         peer,
			"for=203.0.113.7": peer,
			"203.0.113.7\x00": peer,
			"203.0.113.7,":    peer,
		}},
	} {
		p := mustTrust(t, row.header, proxies...)
		for lines, want := range row.want {
			if got := clientOf(p, request("10.0.0.1:80", row.header, strings.Split(lines, "|")...)); got.String() != want {
				t.Errorf("%s: %s makes the client %s; want %s", row.header, lines, got, want)
			}
			n++
		}
		if got := clientOf(p, &http.Request{RemoteAddr: "10.0.0.1:80"}); got.String() != peer {
			t.Errorf("without %s, the client is %s; want the peer, %s", row.header, got, peer)
		}
	}
	t.Logf("counted: %d headers of proxies", n)
}

func TestLongListsAreReadUpToABound(t *testing.T) {
	t.Parallel()
	for _, header := range []string{"X-Forwarded-For", "Forwarded"} {
		p := mustTrust(t, header, proxies...)
		node := func(address string) string {
			if header == "Forwarded" {
				return "for=" + address
			}
			return address
		}
		client, proxy := node("203.0.113.7"), node("10.0.0.2")
		hops := func(n int) []string { return append([]string{client}, slices.Repeat([]string{proxy}, n-1)...) }
		padded := func(n int) []string { // n bytes, in two lines
			spaces := strings.Repeat(" ", n-len(client)-len(proxy))
			return []string{client + spaces[:len(spaces)/2], proxy + spaces[len(spaces)/2:]}
		}
		spaces := strings.Repeat(" ", maxListBytes+1-len(client+proxy))
		for _, row := range []struct {
			name  string
			lines []string
			want  string
		}{
			{"maxHops in one line", []string{strings.Join(hops(maxHops), ",")}, "203.0.113.7"},
			{"maxHops, each in its own line", hops(maxHops), "203.0.113.7"},
			{"maxHops + 1 in one line", []string{strings.Join(hops(maxHops+1), ",")}, "10.0.0.1"},
			{"maxHops + 1, each in its own line", hops(maxHops + 1), "10.0.0.1"},
			{"maxListBytes", padded(maxListBytes), "203.0.113.7"},
			{"maxListBytes + 1", padded(maxListBytes + 1), "10.0.0.1"},
			{"maxListBytes + 2: the client's address is cut", []string{client + "," + spaces + proxy}, "10.0.0.1"},
			{"100 times maxListBytes", padded(100 * maxListBytes), "10.0.0.1"},
			{"a million bytes in one hop", []string{client + strings.Repeat(" ", 1_000_000)}, "10.0.0.1"},
			{"100,000 hops left of the client, which are not read", []string{strings.Repeat(proxy+",", 100_000) + client}, "203.0.113.7"},
			{"100,000 lines before the client's, which are not read", append(slices.Repeat([]string{proxy}, 100_000), client), "203.0.113.7"},
		} {
			if got := clientOf(p, request("10.0.0.1:80", header, row.lines...)); got.String() != row.want {
				t.Errorf("%s: %s: the client is %s; want %s", header, row.name, got, row.want)
			}
		}
	}
}

func TestPeersAreReadAsNetHTTPWritesThem(t *testing.T) {
	t.Parallel()
	for remote, want := range map[string]string{
		"203.0.113.7:80": "203.0.113.7", "203.0.113.7": "203.0.113.7", "[2001:db8::7]:80": "2001:db8::7", "2001:db8::7": "2001:db8::7",
		"[fe80::7%eth0]:80": "fe80::7", "[::ffff:203.0.113.7]:80": "203.0.113.7", "[::ffff:203.0.113.7%eth0]:80": "203.0.113.7",
		"[::1]:0": "::1",
		"":        "invalid IP", "@": "invalid IP", "@name": "invalid IP", "/run/x.sock": "invalid IP", "pipe": "invalid IP",
		"unknown:80": "invalid IP",
		":80":        "invalid IP", "203.0.113.7:": "invalid IP", "host:80": "invalid IP",
	} {
		r := request(remote, "X-Forwarded-For", "198.51.100.9")
		if got := clientOf(mustTrust(t, ""), r); got.String() != want {
			t.Errorf("the peer %q is read as %s; want %s", remote, got, want)
		}
		if got := clientOf(mustTrust(t, "", proxies...), r); got.String() != want {
			t.Errorf("the peer %q, which is no trusted proxy, makes the client %s; want %s", remote, got, want)
		}
		// The network "unix" makes only the peers on unix sockets trusted.
		if slices.Contains([]string{"", "@", "@name", "/run/x.sock"}, remote) {
			want = "198.51.100.9"
		}
		if got := clientOf(mustTrust(t, "", "unix"), r); got.String() != want {
			t.Errorf("the peer %q, if unix sockets are trusted, makes the client %s; want %s", remote, got, want)
		}
	}
}

func TestPeersOfAUnixSocketAreTrustedIfConfigured(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	trusting, strict := mustTrust(t, "", "unix", "10.0.0.0/8"), mustTrust(t, "")
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, clientOf(strict, r), ", ", clientOf(trusting, r))
	}))
	server.Listener.Close()
	server.Listener = listener
	server.Start()
	defer server.Close()
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}}}
	for _, row := range []struct {
		lines []string
		want  string // the client if unix sockets are not trusted, and the client if they are
	}{
		{nil, "invalid IP, invalid IP"},
		{[]string{"198.51.100.9, 203.0.113.7", "10.1.1.1"}, "invalid IP, 203.0.113.7"},
		{[]string{"203.0.113.7", "unknown"}, "invalid IP, invalid IP"},
	} {
		r, err := http.NewRequest("GET", "http://penstock/", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header["X-Forwarded-For"] = row.lines
		response, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err != nil || string(got) != row.want {
			t.Errorf("%q over a unix socket: the clients are %s, %v; want %s", row.lines, got, err, row.want)
		}
	}
}

func TestProxiesAreNamedByNetworkOrAddress(t *testing.T) {
	t.Parallel()
	for text, inside := range map[string]string{
		"10.0.0.0/8": "10.255.0.1:80", "10.0.0.1": "10.0.0.1:80", "2001:db8::/32": "[2001:db8:1::1]:80", "2001:db8::1": "[2001:db8::1]:80",
		"::ffff:10.0.0.0/104": "10.1.1.1:80", "::ffff:10.0.0.1": "10.0.0.1:80", "fe80::/10": "[fe80::1%eth0]:80",
		"10.0.0.0/9": "[::ffff:10.1.1.1]:80", "::1": "[::1]:1",
	} {
		p := mustTrust(t, "x-forwarded-for", text)
		if got := clientOf(p, request(inside, "X-Forwarded-For", "203.0.113.7")); got.String() != "203.0.113.7" {
			t.Errorf("the proxy %s, which is in %s: the client is %s; want 203.0.113.7", inside, text, got)
		}
		if got := clientOf(p, request("192.0.2.1:80", "X-Forwarded-For", "203.0.113.7")); got.String() != "192.0.2.1" {
			t.Errorf("the peer 192.0.2.1, which is not in %s: the client is %s; want the peer", text, got)
		}
	}
}

// addressesIn returns all addresses in a text, with or without ports, brackets and quotes.
func addressesIn(text string) (addresses []netip.Addr) {
	for _, word := range strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(",;=\"[] \t\n", r) }) {
		word, _, _ = strings.Cut(word, "%")
		if address, err := netip.ParseAddr(word); err == nil {
			addresses = append(addresses, address.Unmap())
		}
		if host, _, ok := strings.Cut(word, ":"); ok {
			if address, err := netip.ParseAddr(host); err == nil {
				addresses = append(addresses, address.Unmap())
			}
		}
	}
	return addresses
}

// For any header, the client is the peer, or an address in the header. All addresses to the right
// of that address are trusted. For Forwarded the fuzzer does not check this, because other
// parameters may contain addresses too. When a proxy has appended the attacker's address, the
// client is the attacker.
func FuzzClientAddress(f *testing.F) {
	for i, lines := range forgeries {
		if text := strings.Join(lines, "\n"); len(text) < 5000 { // long ones are slow to mutate
			f.Add(text, "10.0.0.1:80", uint8(i))
		}
	}
	for _, remote := range []string{"@", "", "[fe80::1%eth0]:1", "203.0.113.7:1", "10.0.0.1", "[::ffff:10.1.1.1]:1", "[2001:db8:10::1]:1"} {
		f.Add("for=203.0.113.7, for=10.1.1.1", remote, uint8(2))
		f.Add("203.0.113.7, 10.1.1.1", remote, uint8(0))
	}
	f.Fuzz(func(t *testing.T, written, remote string, kind uint8) {
		list := lists[int(kind)%len(lists)]
		p := mustTrust(t, list.header, append([]string{"unix"}, proxies...)...)
		peer := clientOf(mustTrust(t, ""), request(remote, ""))
		lines := strings.Split(written, "\n")
		client := clientOf(p, request(remote, list.header, lines...))
		if client.Is4In6() || client.Zone() != "" {
			t.Errorf("%q from %q: the client is %s; want no zone, and no IPv4-mapped address", lines, remote, client)
		}
		isPeerTrusted := p.trustsAddress(peer) || PeerOf(remote).IsSocket
		if client != peer {
			candidates := addressesIn(written)
			mayPass := func(address netip.Addr) bool { return p.trustsAddress(address) || list.header == "Forwarded" }
			for len(candidates) > 0 && candidates[len(candidates)-1] != client && mayPass(candidates[len(candidates)-1]) {
				candidates = candidates[:len(candidates)-1]
			}
			if len(candidates) == 0 || candidates[len(candidates)-1] != client || !isPeerTrusted {
				t.Errorf("%q from %q: the client is %s; want the peer, or an address right of which all are trusted", lines, remote, client)
			}
		}
		attacker, proxy := fmt.Sprintf(list.append, "203.0.113.7"), fmt.Sprintf(list.append, "10.0.0.2")
		for _, passed := range slices.Concat(appended(lines, attacker), appended(lines, attacker, proxy)) {
			want := peer
			if isPeerTrusted {
				want = netip.MustParseAddr("203.0.113.7")
			}
			if got := clientOf(p, request(remote, list.header, passed...)); got != want {
				t.Errorf("%q from %q: the client is %s; want %s", passed, remote, got, want)
			}
		}
	})
}

var benchmarks = []struct {
	name, header string
	trusted      []string
	lines        []string
}{
	{name: "peer", lines: []string{"203.0.113.7"}},
	{name: "one hop", trusted: proxies, lines: []string{"203.0.113.7"}},
	{name: "three hops", trusted: proxies, lines: []string{"198.51.100.9, [2001:db8::7]:80, 10.1.1.1, 2001:db8:10::1"}},
	{name: "Forwarded", header: "Forwarded", trusted: proxies, lines: []string{`for=198.51.100.9, for="[2001:db8::7]:80";proto=https, for=10.1.1.1;by="_x"`}},
	{name: "X-Real-IP", header: "X-Real-IP", trusted: proxies, lines: []string{"203.0.113.7"}},
}

func TestClientAddressCostsNoAllocation(t *testing.T) {
	for _, row := range benchmarks {
		p := mustTrust(t, row.header, row.trusted...)
		r := request("10.0.0.1:80", p.header, row.lines...)
		if got := testing.AllocsPerRun(100, func() { clientOf(p, r) }); got != 0 {
			t.Errorf("%s: %v allocations; want 0", row.name, got)
		}
	}
}

func BenchmarkClientAddress(b *testing.B) {
	for _, row := range benchmarks {
		b.Run(row.name, func(b *testing.B) {
			p := mustTrust(b, row.header, row.trusted...)
			r := request("10.0.0.1:80", p.header, row.lines...)
			b.ReportAllocs()
			for b.Loop() {
				clientOf(p, r)
			}
		})
	}
}
