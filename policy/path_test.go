package policy

import (
	"fmt"
	"math/rand/v2"
	"net/url"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/testing/effort"
)

var (
	strict  = Paths{}
	slashes = Paths{KeepEncodedSlash: true}
	java    = Paths{StripParameters: true}
	windows = Paths{IgnoreCase: true, IgnoreTrailingSlash: true}
	loose   = Paths{KeepEncodedSlash: true, IgnoreTrailingSlash: true, IgnoreCase: true, StripParameters: true}
)

// allPaths returns all combinations of settings.
func allPaths() (all []Paths) {
	const settings = 4
	for bits := range 1 << settings {
		all = append(all, Paths{
			KeepEncodedSlash:    bits&1 != 0,
			IgnoreTrailingSlash: bits&2 != 0,
			IgnoreCase:          bits&4 != 0,
			StripParameters:     bits&8 != 0,
		})
	}
	return all
}

func TestEverySpellingOfAPathIsOnePath(t *testing.T) {
	t.Parallel()
	n := 0
	for _, row := range []struct {
		paths     Paths
		canonical string
		spellings []string
	}{
		{paths: strict, canonical: "/", spellings: []string{
			"/", "", "//", "///", "/.", "/./", "//.", "/./.", "/././/.//", "/..", "/../", "/../..", "/../../", "/..//..", "/%2e", "/%2E/",
			"/%2e%2e", "/%2E%2e/", "/.%2e", "/%2e.", "/a/..", "/a/../", "/a/b/../..", "/a/./../", "/a//..", "/a//../", "/../a/..",
			"/%61/%2e%2e", "/../../../../../..", "//..", "/./..//./",
		}},
		{paths: strict, canonical: "*", spellings: []string{"*"}},
		{paths: strict, canonical: "/login", spellings: []string{
			"/login", "//login", "///login", "/./login", "/../login", "/.//login", "/a/../login", "/a/b/../../login", "/a/.././login",
			"/%6cogin", "/%6Cogin", "/%6c%6f%67%69%6e", "/%6C%6F%67%69%6E", "/logi%6e", "/%2e/login", "/%2e%2e/login", "/%2E%2E/login",
			"/.%2E/login", "/x/%2e%2e/login", "/x/%2e%2e/%6cogin", "/login/../login", "/login/./../login", "//..//login",
			"/x//../login", "/x/y/..//../login", "/.../../login",
		}},
		{paths: strict, canonical: "/login/", spellings: []string{
			"/login/", "//login//", "/login//", "/login///", "/login/.", "/login/./", "/login/x/..", "/login/x/../", "/login/%2e",
			"/login/%2E/",
			"/login/x/%2e%2e", "/./login/././", "/../login/", "/login/x//..", "/%6cogin//.",
		}},
		{paths: strict, canonical: "/Login", spellings: []string{"/Login", "/%4cogin", "/%4Cogin", "/./Login"}},
		{paths: strict, canonical: "/admin/users/42", spellings: []string{
			"/admin/users/42", "/admin//users/42", "/admin/./users/42", "/admin/x/../users/42", "//admin//users//42", "/%61dmin/users/42",
			"/%61%64%6d%69%6e/%75%73%65%72%73/%34%32", "/admin/users/4%32", "/admin/users/%342", "/admin/users/43/../42",
			"/a/../admin/users/./42",
			"/admin/%2e/users/%2E/42", "/admin/%2e%2e/admin/users/42", "/admin/users/x/y/../../42", "/../admin/users/42",
		}},
		{paths: strict, canonical: "/a:b@c", spellings: []string{"/a:b@c", "/a%3Ab%40c", "/a%3ab@c", "/%61:%62%40%63", "/a:b%40c"}},
		{paths: strict, canonical: "/!$&'()*+,;=", spellings: []string{
			"/!$&'()*+,;=", "/%21%24%26%27%28%29%2A%2B%2C%3B%3D", "/%21%24%26%27%28%29%2a%2b%2c%3b%3d", "/%21$%26'%28)%2A+%2C;%3D",
		}},
		{paths: strict, canonical: "/-._~", spellings: []string{"/-._~", "/%2D%2E%5F%7E", "/%2d%2e%5f%7e", "/-.%5f~"}},
		{paths: strict, canonical: "/1+1", spellings: []string{"/1+1", "/1%2B1", "/1%2b1", "/%31+%31"}},
		{paths: strict, canonical: "/1%201", spellings: []string{"/1%201", "/1 1", "/%31%20%31"}},
		{paths: strict, canonical: "/caf%C3%A9", spellings: []string{"/caf%C3%A9", "/caf%c3%a9", "/café", "/caf\xc3%a9", "/caf%c3\xa9", "/%63%61%66%C3%a9"}},
		{paths: strict, canonical: "/%E2%82%AC/%F0%9F%98%80", spellings: []string{
			"/€/😀", "/%e2%82%ac/%f0%9f%98%80", "/%E2%82%AC/😀", "/\xe2%82\xac/%f0\x9f%98\x80", "/€//%F0%9F%98%80",
		}},
		{paths: strict, canonical: "/%22%3C%3E%5B%5D%5E%60%7B%7C%7D", spellings: []string{
			"/%22%3C%3E%5B%5D%5E%60%7B%7C%7D", `/"<>[]^` + "`{|}", "/%22%3c%3e%5b%5d%5e%60%7b%7c%7d", `/"%3C>%5b]%5E` + "`%7b|%7D",
		}},
		{paths: strict, canonical: "/a%3Fb%23c", spellings: []string{"/a%3Fb%23c", "/a%3fb%23c", "/%61%3Fb%23%63"}},
		// A path is decoded once. Text that was encoded twice stays encoded.
		{paths: strict, canonical: "/%252F", spellings: []string{"/%252F", "/./%252F"}},
		{paths: strict, canonical: "/%252e%252e/a", spellings: []string{"/%252e%252e/a", "/%25%32%65%25%32%65/a", "/%25%32e%252%65//a"}},
		{paths: strict, canonical: "/%25252e", spellings: []string{"/%25252e", "/%25%32%35%32e"}},
		{paths: strict, canonical: "/%2500", spellings: []string{"/%2500", "/%25%30%30"}},
		// Names of several dots, and characters that only look like dots or slashes.
		{paths: strict, canonical: "/...", spellings: []string{"/...", "/%2e%2e%2e", "/.%2E.", "/./..."}},
		{paths: strict, canonical: "/a./b../.c/..d", spellings: []string{"/a./b../.c/..d", "/a%2e/b%2e%2e/%2ec/.%2ed"}},
		{paths: strict, canonical: "/.well-known/x", spellings: []string{"/.well-known/x", "/%2ewell-known/x", "/.//.well-known/./x"}},
		{paths: strict, canonical: "/%EF%BC%8E%EF%BC%8E%EF%BC%8Fa", spellings: []string{"/．．／a", "/%EF%BC%8E%EF%BC%8E%EF%BC%8Fa", "/%ef%bc%8e%ef%bc%8e%ef%bc%8f%61"}},
		// A path that looks like another form of a request's target.
		{paths: strict, canonical: "/example.com/a", spellings: []string{"//example.com/a", "/example.com/a", "///example.com//a"}},
		{paths: strict, canonical: "/http:/example.com/a", spellings: []string{"/http://example.com/a", "/http%3a//example.com/a"}},
		{paths: strict, canonical: "/*", spellings: []string{"/*", "/%2A", "/%2a"}},
		// Parameters are a part of a name, unless they are stripped.
		{paths: strict, canonical: "/a;v=1/b", spellings: []string{"/a;v=1/b", "/a%3Bv=1/b", "/a%3bv%3d1/b", "/a;v=1/./b", "/a;v=1/c/../b"}},
		{paths: strict, canonical: "/;/a", spellings: []string{"/;/a", "/%3b/a"}},
		{paths: java, canonical: "/a/b", spellings: []string{
			"/a/b", "/a;/b", "/a;v=1/b", "/a%3Bv=1/b", "/a;v=1;w=2/b;x", "/a;v=1/b;", "/;x/a/b", "/a/;x/b", "/a/;/;/b", "/a/.;x/b",
			"/a/c/..;x/b",
			"/a/c/..;/b", "/c/..;/a/b", "/..;/a/b", "/%2e%2e;/a/b", "/%2e%2e%3b/a/b", "/.;/a/b", "/a/c;v=1/..;w=2/b", "/a;..;/b",
			"/a;%2e%2e/b",
			"/a;v=%252F/b", "/a;é/b",
		}},
		{paths: java, canonical: "/a/", spellings: []string{"/a/", "/a/;", "/a;/;x", "/a/b/..;", "/a/.;v"}},
		{paths: windows, canonical: "/", spellings: []string{"/", "//", "/A/..", "/./"}},
		{paths: windows, canonical: "/a/b", spellings: []string{"/a/b", "/A/b", "/a/B/", "/%41/%42", "/%41//%62/", "/a/b/.", "/a/b/C/..", "//A//B//"}},
		{paths: windows, canonical: "/%C3%84", spellings: []string{"/Ä", "/%c3%84", "/Ä/", "/%C3%84//"}}, // only ASCII has a case
		{paths: windows, canonical: "/%252f", spellings: []string{"/%252f", "/%252F", "/%252F/"}},
		{paths: slashes, canonical: "/a%2Fb", spellings: []string{"/a%2Fb", "/a%2fb", "/%61%2fb", "/./a%2Fb"}},
		{paths: slashes, canonical: "/a%5Cb", spellings: []string{"/a%5Cb", "/a%5cb", `/a\b`, `/c/..//a\b`}},
		{paths: slashes, canonical: "/%2F%2F", spellings: []string{"/%2F%2F", "/%2f%2F", "//%2f%2f"}},
		{paths: slashes, canonical: "/a/%2F", spellings: []string{"/a/%2F", "/a//%2f"}},
		{paths: slashes, canonical: "/a%2F...%5C.b", spellings: []string{"/a%2F...%5C.b", `/a%2f%2e..\.b`}},
		{paths: loose, canonical: "/a%2Fb/c", spellings: []string{"/A%2fB/C/", "/a%2Fb;x/c", "/a%2Fb;x%2f../c;", "/%41%2fb//c;v=1/"}},
	} {
		for _, spelling := range row.spellings {
			got, err := row.paths.Clean(spelling)
			if err != nil || got != row.canonical {
				t.Errorf("%+v: %q is read as %q, %v; want %q", row.paths, spelling, got, err, row.canonical)
			}
			n++
		}
	}
	t.Logf("counted: %d spellings of paths (written by hand)", n)
}

// The marks « and » enclose the part of a path that the error names.
func TestAmbiguousPathsAreErrors(t *testing.T) {
	t.Parallel()
	n := 0
	for _, row := range []struct {
		paths     Paths
		why       string
		spellings []string
	}{
		{paths: strict, why: "is not a percent-encoding; write % as %25", spellings: []string{
			"/«%»", "/a«%»", "/a«%2»", "/«%zz»", "/«%2g»/", "/«%»/2F", "/«%%3»2%65", "/«%u0»02e", "/«%u2»215", "/«% 4»1", "/«%-1»", "/«%+4»1",
			"/a/100«%»",
		}},
		{paths: loose, why: "is a control character; remove it", spellings: []string{
			"/«%00»", "/a«%00».html", "/a/«%0d»%0aX:%20y", "/«%0A»", "/«%09»", "/«%1f»", "/«%7F»", "/«\x00»", "/a«\n»b", "/«\x7f»", "/..«%00»/",
			"/«%1b»[31m", "/a;«%00»", "/«%00»/..",
		}},
		{paths: strict, why: "ends a path; write it as %3F or %23 if it belongs to the path", spellings: []string{"/a«?»b", "/a«#»b", "/«?»", "/a/..«#»/b"}},
		{paths: strict, why: "is a slash to some servers only; write /", spellings: []string{
			"/a«%2F»b", "/a«%2f»b", "/«%2F»", "/a«%5C»b", "/a«%5c»b", `/a«\»b`, `/..«\»a`, "/..«%2f»a", "/a/%2e%2e«%2f»b", "/a/..«%5c»..%5cb",
			"/«%2f»%2e%2e", "/a/«%2F»/../b", "/a«%2F»b/..", `/«\»example.com`,
		}},
		{paths: java, why: "is a slash to some servers only; write /", spellings: []string{"/a;«%2F»", "/a;v=«%5C»/b"}},
		{paths: strict, why: dotSegmentError, spellings: []string{
			"/«..;»/a", "/a/«..;»/b", "/a/«..;v=1»/b", "/«.;»/a", "/«%2e%2e;x»", "/«..%3b»/a", "/a/«.;»", "/«..;..;»",
		}},
		{paths: slashes, why: dotSegmentError, spellings: []string{
			"/«..%2Fa»", "/a/«%2e%2e%2fb»", "/«a%2F..»", "/«a%2F..%2Fb»", `/«..\a»`, "/«a%5c%2e»", "/«%2F..»", "/«.%2F»", "/«a%2f..;x%2fb»",
		}},
		{paths: loose, why: dotSegmentError, spellings: []string{"/«a%2F..;x»/b", "/«..%5C;»/"}},
		{paths: strict, why: "does not begin a character of UTF-8; write the path in UTF-8", spellings: []string{
			"/«%c0»%af", "/..«%c0»%afa", "/«%c0»%ae%c0%ae/", "/«%e0»%80%af", "/«%f0»%80%80%af", "/«%c1»%9c", "/«%c0»%80", "/«%ff»", "/«%fe»%80",
			"/caf«%e9»", "/«%80»", "/«%ed»%a0%80", "/«%f4»%90%80%80", "/«%e2»%82", "/«%e2»%82/%ac", "/«%e2»%82a", "/«%e2»\x82", "/«%c3»", "/«%c3»%",
			"/«\xff»", "/a«\xc0\xafb»",
		}},
	} {
		for _, marked := range row.spellings {
			before, rest, _ := strings.Cut(marked, "«")
			wrong, after, _ := strings.Cut(rest, "»")
			path := before + wrong + after
			got, err := row.paths.Clean(path)
			if want := fmt.Sprintf("path: %q at offset %d %s", wrong, len(before), row.why); err == nil || err.Error() != want {
				t.Errorf("%+v: %q is read as %q, %v; want the error %s", row.paths, path, got, err, want)
			}
			n++
		}
	}
	for _, path := range []string{
		"a", "a/b", "../a", "%2Fa", "http://example.com/a", "?a=1", "#a", `\a`, "**", "*/", " /a", "%2A", ";/a", "example.com:443",
	} {
		got, err := strict.Clean(path)
		if want := fmt.Sprintf("path: %q does not begin with a slash; write /path", path); err == nil || err.Error() != want {
			t.Errorf("%q is read as %q, %v; want the error %s", path, got, err, want)
		}
		n++
	}
	t.Logf("counted: %d spellings of paths (refused)", n)
}

const dotSegmentError = "is a dot segment to some servers only; write . and .. without parameters and encoded slashes"

// A speller writes a path in one of its many equivalent forms.
type speller struct {
	*rand.Rand
	paths Paths
}

// spell returns one spelling of the path with these segments.
func (s speller) spell(segments []string) string {
	var b strings.Builder
	for i, segment := range segments {
		b.WriteByte('/')
		for range s.IntN(3) {
			b.WriteString(s.noOpSegments(i == 0))
		}
		for _, c := range []byte(segment) {
			b.WriteString(s.byte(c))
		}
		if s.paths.StripParameters && s.IntN(2) == 0 {
			b.WriteString(s.byte(';') + "v=1;..")
		}
	}
	if s.paths.IgnoreTrailingSlash {
		b.WriteString([]string{"", "/", "//", "/./", "/%2e", "/x/.."}[s.IntN(6)])
	}
	return b.String()
}

// noOpSegments returns segments that do not change the path, such as "./" and "x/../".
func (s speller) noOpSegments(isRoot bool) string {
	dot := func() string { return s.byte('.') }
	ways := []string{"/", dot() + "/", "x/" + dot() + dot() + "/", "x/y/" + dot() + dot() + "//" + dot() + dot() + "/"}
	if isRoot {
		ways = append(ways, dot()+dot()+"/")
	}
	return ways[s.IntN(len(ways))]
}

// byte returns one spelling of a byte.
func (s speller) byte(c byte) string {
	if s.paths.IgnoreCase && s.IntN(2) == 0 && c >= 'a' && c <= 'z' {
		c -= 'a' - 'A'
	}
	switch mustEncode := c == '%' || c == '?' || c == '#' || c == '/'; {
	case s.IntN(3) == 0:
		return fmt.Sprintf("%%%02X", c)
	case s.IntN(2) == 0 || mustEncode:
		return fmt.Sprintf("%%%02x", c)
	}
	return string([]byte{c})
}

func TestAnyMixOfSpellingsIsOnePath(t *testing.T) {
	t.Parallel()
	seed := effort.Seed()
	n := 0
	for _, row := range []struct {
		segments  []string
		canonical string
	}{
		{[]string{"a"}, "/a"},
		{[]string{"api", "v1", "users", "42"}, "/api/v1/users/42"},
		{[]string{"a b", "ü", "50%", "what?"}, "/a%20b/%C3%BC/50%25/what%3F"},
		{[]string{"...", ".a", "b..", "%2e%2e"}, "/.../.a/b../%252e%252e"},
		{[]string{"[x]", "{y}", "a@b:c", "€"}, "/%5Bx%5D/%7By%7D/a@b:c/%E2%82%AC"},
	} {
		for _, paths := range allPaths() {
			s := speller{rand.New(rand.NewPCG(seed, 0)), paths}
			for range 500 {
				spelling := s.spell(row.segments)
				if got, err := paths.Clean(spelling); err != nil || got != row.canonical {
					t.Fatalf("%+v: %q is read as %q, %v; want %q (seed %d)", paths, spelling, got, err, row.canonical, seed)
				}
				n++
			}
		}
	}
	t.Logf("counted: %d spellings of paths (generated, seed %d)", n, seed)
}

func TestDifferentPathsStayDifferent(t *testing.T) {
	t.Parallel()
	seen := make(map[string]string)
	for _, path := range []string{
		"/", "*", "/*", "/a", "/a/", "/A", "/a/b", "/ab", "/a%20b", "/a+b", "/a%252Fb", "/a%252fb", "/a%252F", "/a%25252Fb", "/a;b",
		"/a;", "/;a", "/a,b", "/...", "/a.",
		"/.a", "/%C3%A9", "/e%CC%81", "/%EF%BC%8F", "/a%2Fb", "/a%5Cb", "/a%2F%2Fb", "/a%2F", "/a%2F/", "/%2Fa", "/%252e%252e", "/%25",
		"/%2525", "/a%3Fb", "/a%23b",
	} {
		got, err := slashes.Clean(path)
		if other, twice := seen[got]; err != nil || twice {
			t.Errorf("%q is read as %q, %v; another path with this reading is %q; want different readings and no error", path, got, other, err)
		}
		seen[got] = path
	}
}

func TestRewriteSendsTheMatchedPath(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		paths           Paths
		target          string // of the request
		path, canonical string // u.Path and u.EscapedPath() after Rewrite; "" if it is an error
		isChanged       bool
	}{
		{paths: strict, target: "/", path: "/", canonical: "/"},
		{paths: strict, target: "/a/b", path: "/a/b", canonical: "/a/b"},
		{paths: strict, target: "/a//b/../c?q=%2F//..", path: "/a/c", canonical: "/a/c", isChanged: true},
		{paths: strict, target: "/a!(b)'*", path: "/a!(b)'*", canonical: "/a!(b)'*"},
		{paths: strict, target: "/a%21(b)", path: "/a!(b)", canonical: "/a!(b)", isChanged: true},
		{paths: strict, target: "/a%20b", path: "/a b", canonical: "/a%20b"},
		{paths: strict, target: "/%c3%a9", path: "/é", canonical: "/%C3%A9", isChanged: true},
		{paths: strict, target: "/é", path: "/é", canonical: "/%C3%A9"}, // net/url writes it so
		{paths: strict, target: "/[a]", path: "/[a]", canonical: "/%5Ba%5D", isChanged: true},
		{paths: strict, target: "/%252F", path: "/%2F", canonical: "/%252F"},
		{paths: strict, target: "//example.com/a", path: "/example.com/a", canonical: "/example.com/a", isChanged: true},
		{paths: strict, target: "http://example.com", path: "/", canonical: "/", isChanged: true},
		{paths: strict, target: "http://example.com/a/../b?x", path: "/b", canonical: "/b", isChanged: true},
		{paths: strict, target: "*", path: "*", canonical: "*"},
		{paths: slashes, target: "/a%2Fb", path: "/a/b", canonical: "/a%2Fb"},
		{paths: slashes, target: "/a%2fb", path: "/a/b", canonical: "/a%2Fb", isChanged: true},
		{paths: slashes, target: "/%2f/x", path: "///x", canonical: "/%2F/x", isChanged: true},
		{paths: slashes, target: `/a%2Fb"`, path: `/a/b"`, canonical: "/a%2Fb%22", isChanged: true},
		{paths: strict, target: "/a%2Fb"},
		{paths: strict, target: `/a%2Fb"`}, // net/url would write /a/b%22
		{paths: strict, target: `/a%2F..%2Fb c`},
		{paths: strict, target: "/a#b"},
		{paths: strict, target: "mailto:a"},
		{paths: strict, target: "/%ff?q"},
	} {
		u, err := url.ParseRequestURI(row.target)
		if err != nil {
			t.Fatal(row.target, err)
		}
		before := *u
		changed, err := row.paths.Rewrite(u)
		if row.canonical == "" {
			if err == nil || changed || *u != before {
				t.Errorf("Rewrite of %s makes the URL %+v, and returns %t, %v; want an error and no change", row.target, *u, changed, err)
			}
			continue
		}
		if err != nil || changed != row.isChanged || u.EscapedPath() != row.canonical || u.Path != row.path {
			t.Errorf("Rewrite of %s makes the escaped path %s and the path %q, and returns %t, %v; want %s, %q and %t",
				row.target, u.EscapedPath(), u.Path, changed, err, row.canonical, row.path, row.isChanged)
		}
		if u.RawQuery != before.RawQuery || u.Host != before.Host {
			t.Errorf("Rewrite of %s makes %s; want the same query and host", row.target, u)
		}
		if again, err := row.paths.Rewrite(u); again || err != nil {
			t.Errorf("a second Rewrite of %s returns %t, %v; want false and no error", row.target, again, err)
		}
	}
}

// Rewrite reads the path that the caller set, not the text from which the URL was parsed.
func TestRewriteReadsThePathThatIsSent(t *testing.T) {
	t.Parallel()
	u := &url.URL{Path: "/b//c d", RawPath: "/stale%2Fpath"}
	if changed, err := strict.Rewrite(u); !changed || err != nil || u.EscapedPath() != "/b/c%20d" {
		t.Errorf("Rewrite makes the escaped path %s, and returns %t, %v; want /b/c%%20d and true", u.EscapedPath(), changed, err)
	}
}

func TestCanonicalPathsCostNoAllocation(t *testing.T) {
	long := "/" + strings.Repeat("segment/", 1000)
	for _, path := range []string{"/", "/api/v1/users/42", "/.well-known/x", "/caf%C3%A9/%F0%9F%98%80", long} {
		u, err := url.ParseRequestURI(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := testing.AllocsPerRun(100, func() {
			if clean, err := strict.Clean(path); err != nil || clean != path {
				t.Errorf("%.40q is read as %.40q, %v; want no change", path, clean, err)
			}
		}); got != 0 {
			t.Errorf("Clean(%.40q) allocates %v times; want 0", path, got)
		}
		if got := testing.AllocsPerRun(100, func() { strict.Rewrite(u) }); got != 0 && !strings.Contains(path, "%") {
			t.Errorf("Rewrite of %.40q allocates %v times; want 0", path, got)
		}
	}
}

// hasDotSegment reports whether a server that decodes a path once and then splits it at slashes
// would find a dot segment in it.
func hasDotSegment(decoded string) bool {
	for segment := range strings.SplitSeq(strings.ReplaceAll(decoded, `\`, "/"), "/") {
		name, _, _ := strings.Cut(segment, ";")
		if name == "." || name == ".." {
			return true
		}
	}
	return false
}

func FuzzCleanPath(f *testing.F) {
	for i, path := range []string{
		"/", "", "*", "/a//b/./../c", "/%2e%2e%2fb", "/..;/a", "/%252F", "/caf%c3%A9", "/%c0%af", `/a\b%5c`, "/a;v=1/b;", "/A/%41/",
		"/%00", "/%", "http://h/a", "/!$&'()*+,;=:@", "/é€😀",
		`/a%2Fb"`, "/a?b#c", "/%2f..;/", "/..%2F..", "/%ed%a0%80", "/\xc3%a9", "//%2F//",
	} {
		f.Add(path, uint8(i))
	}
	settings := allPaths()
	f.Fuzz(func(t *testing.T, path string, setting uint8) {
		p := settings[int(setting)%len(settings)]
		clean, err := p.Clean(path)
		if err != nil {
			if len(err.Error()) > 400 || clean != "" {
				t.Errorf("%+v: %q is read as %q, %v; want only an error, of at most 400 bytes", p, path, clean, err)
			}
			return
		}
		if again, err := p.Clean(clean); again != clean || err != nil {
			t.Errorf("%+v: %q is cleaned to %q, and cleaned again to %q, %v; want the same path", p, path, clean, again, err)
		}
		if clean == "*" {
			return
		}
		decoded, err := url.PathUnescape(clean)
		if err != nil || decoded[0] != '/' || strings.ContainsAny(decoded, "\x00\r\n\x7f") {
			t.Errorf("%+v: %q is read as %q, which decodes to %q, %v; want a path without control characters", p, path, clean, decoded, err)
		}
		hasEncodedSlash := strings.Contains(decoded, "//") || strings.Contains(decoded, `\`)
		if hasEncodedSlash && !p.KeepEncodedSlash || strings.Contains(clean, "//") || hasDotSegment(decoded) {
			t.Errorf("%+v: %q is read as %q, which decodes to %q; want one reading of its slashes and dots", p, path, clean, decoded)
		}
		u, err := url.ParseRequestURI(clean)
		if err != nil || u.Path != decoded || u.EscapedPath() != clean || u.RawQuery != "" {
			t.Errorf("%+v: %q is read as %q, which net/url parses as %+v, %v; want the same path", p, path, clean, u, err)
		}
		if changed, err := p.Rewrite(u); changed || err != nil {
			t.Errorf("%+v: %q is read as %q, which is rewritten to %q, %v; want no change", p, path, clean, u.EscapedPath(), err)
		}
		// If net/url parses the same text, Rewrite returns the same path or an error.
		if u, err := url.ParseRequestURI(path); err == nil && u.Host == "" && u.Opaque == "" && u.RawQuery == "" && !u.ForceQuery {
			if _, err := p.Rewrite(u); err != nil || u.EscapedPath() != clean || u.Path != decoded {
				t.Errorf("%+v: %q is read as %q, but rewritten to %q, %v; want the same path", p, path, clean, u.EscapedPath(), err)
			}
		}
	})
}

func BenchmarkCleanPath(b *testing.B) {
	for _, row := range []struct{ name, path string }{
		{"canonical", "/api/v1/users/42"},
		{"encoded", "/api/v1/caf%C3%A9/%F0%9F%98%80"},
		{"other", "/api//v1/./users/x/../%34%32"},
	} {
		b.Run(row.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := strict.Clean(row.path); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// Some servers that ignore case read these letters as i, s and k. So a client could evade a rule.
func TestLettersThatFoldToASCIIAreRejectedIfCaseIsIgnored(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"/log%C4%B0n", "/%E2%84%AAassa", "/ka%c5%bf%c5%bfa", "/a/\u212a"} {
		if got, err := (Paths{IgnoreCase: true}).Clean(path); err == nil || !strings.Contains(err.Error(), "write i, s or k") {
			t.Errorf("%s is cleaned to %q, error %v; want it rejected", path, got, err)
		}
		if _, err := (Paths{}).Clean(path); err != nil {
			t.Errorf("with case_sensitive, %s is rejected: %v", path, err)
		}
	}
	if got, err := (Paths{IgnoreCase: true}).Clean("/%C3%A9T%C4%B1"); err != nil || got != "/%C3%A9t%C4%B1" {
		t.Errorf("another letter is cleaned to %q, error %v; want it accepted", got, err)
	}
}
