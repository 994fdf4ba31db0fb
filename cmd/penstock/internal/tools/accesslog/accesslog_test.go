package accesslog

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
)

// read returns all requests of files.
func read(t testing.TB, format *Format, names ...string) ([]Entry, Stats) {
	t.Helper()
	r, err := Open(names, nil, format)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var all []Entry
	for {
		e, err := r.Next()
		if err == io.EOF {
			return all, r.Stats()
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, *e)
	}
}

func write(t testing.TB, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// lines are lines of each format, in the form of the programs' documentation.
var lines = map[string]struct{ line, want string }{
	"combined": {`203.0.113.9 - frank [10/Oct/2026:13:55:36 -0700] "GET /apache_pb.gif?x=1 HTTP/1.0" 200 2326 "http://www.example.com/start.html" "Mozilla/4.08 [en] (Win98; \"I\" ;Nav)"`,
		`2026-10-10T20:55:36Z 0s 203.0.113.9 GET "" /apache_pb.gif?x=1 200 frank [{Referer http://www.example.com/start.html} {User-Agent Mozilla/4.08 [en] (Win98; \"I\" ;Nav)}]`},
	"vhost-combined": {`www.example.com:80 2001:db8::7 - - [10/Oct/2026:13:55:36 +0000] "POST /a HTTP/1.1" 302 - "-" "curl/8"`,
		`2026-10-10T13:55:36Z 0s 2001:db8::7 POST "www.example.com:80" /a 302  [{User-Agent curl/8}]`},
	"common": {`127.0.0.1 - - [10/Oct/2026:13:55:36 +0000] "GET / HTTP/1.1" 200 12`,
		`2026-10-10T13:55:36Z 0s 127.0.0.1 GET "" / 200  []`},
	"envoy": {`[2026-04-15T20:17:00.310Z] "POST /api/v1/locations HTTP/2" 204 - 154 0 226 100 "10.0.35.28" "nsq2http" "cc21d9b0-cf5c-432b-8c7e-98aeb7988cd2" "locations" "tcp://10.0.2.1:80"`,
		`2026-04-15T20:17:00.31Z 226ms invalid IP POST "locations" /api/v1/locations 204  [{X-Forwarded-For 10.0.35.28} {User-Agent nsq2http}]`},
	"haproxy": {`Feb  6 12:14:14 localhost haproxy[14389]: 10.0.1.2:33317 [06/Feb/2026:12:14:14.655] http-in static/srv1 10/0/30/69/109 200 2750 - - ---- 1/1/1/1/0 0/0 {1wt.eu} {} "GET /index.html HTTP/1.1"`,
		`2026-02-06T12:14:14.655Z 0s 10.0.1.2 GET "" /index.html 200  []`},
	"alb": {`https 2026-07-02T22:23:00.186641Z app/my-loadbalancer/50dc6c495c0c9188 192.168.131.39:2817 10.0.0.1:80 0.086 0.048 0.037 200 200 0 57 "GET https://www.example.com:443/a?b=c HTTP/1.1" "curl/7.46.0" ECDHE-RSA-AES128-GCM-SHA256 TLSv1.2 arn:aws:x "Root=1-58337281" "www.example.com" "arn:aws:acm" 1 2026-07-02T22:22:48.364000Z "authenticate,forward" "-" "-" "10.0.0.1:80" "200" "-" "-"`,
		`2026-07-02T22:22:48.364Z 86ms 192.168.131.39 GET "" https://www.example.com:443/a?b=c 200  [{User-Agent curl/7.46.0}]`},
	"json": {`{"level":"info","ts":1746861401.5241,"logger":"http.log.access","msg":"handled request","request":{"remote_ip":"127.0.0.1","client_ip":"198.51.100.4","method":"GET","host":"localhost","uri":"/x?y","headers":{"User-Agent":["curl/7.82.0"],"X-Api-Key":["a"]}},"duration":0.5,"status":200}`,
		`2025-05-10T07:16:41.0241Z 500ms 198.51.100.4 GET "localhost" /x?y 200  [{User-Agent curl/7.82.0} {X-Api-Key a}]`},
}

func TestEachFormatIsDetectedAndRead(t *testing.T) {
	for name, c := range lines {
		all, stats := read(t, nil, write(t, name, strings.Repeat(c.line+"\n", 3)))
		if len(all) != 3 || stats.Files[0].Format != name {
			t.Errorf("%s: %d requests were read in the format %s; want 3 and %s", name, len(all), stats.Files[0].Format, name)
			continue
		}
		e := all[0]
		if got := fmt.Sprintf("%s %v %v %s %q %s %d %s %v", e.Time.UTC().Format(time.RFC3339Nano), e.Duration, e.Address, e.Method, e.Host, e.Target, e.Status, e.User, e.Headers); got != c.want {
			t.Errorf("%s:\n%s\nis read as %s\nwant       %s", name, c.line, got, c.want)
		}
	}
}

func TestOtherFormatsAreRead(t *testing.T) {
	for name, c := range map[string]struct{ format, text, want string }{
		"nginx": {`$remote_addr $http_x_api_key [$msec] "$request" $status $request_time`, `192.0.2.1 k1 [1700000000.250] "GET /a HTTP/1.1" 200 0.250`,
			"2023-11-14T22:13:20Z 192.0.2.1 /a [{X-Api-Key k1}]"},
		"log_format": {"log_format  main escape=default '$remote_addr \\'$http_x_api_key\\' [$msec] '\n    '\"$request\" $status';\n", `192.0.2.1 'k1' [1700000000.250] "GET /a HTTP/1.1" 200 0.250`,
			"2023-11-14T22:13:20.25Z 192.0.2.1 /a [{X-Api-Key k1}]"},
		"log_format without quotes": {"log_format short $msec\t$remote_addr\t$request_uri;", "1700000000.250\t192.0.2.1\t/a", "2023-11-14T22:13:20.25Z 192.0.2.1 /a []"},
		"expression":                {`^(?P<time_iso8601>\S+) (?P<remote_addr>\S+) (?P<request_uri>\S+)$`, "2026-01-02T03:04:05.5Z 192.0.2.1 /a", "2026-01-02T03:04:05.5Z 192.0.2.1 /a []"},
		"JSON of nginx": {"", `{"time_iso8601":"2026-01-02T03:04:05+01:00","remote_addr":"192.0.2.1","request":"GET /a HTTP/1.1","status":"200","http_x_forwarded_for":"198.51.100.1"}`,
			"2026-01-02T02:04:05Z 192.0.2.1 /a [{X-Forwarded-For 198.51.100.1}]"},
		"JSON of Traefik": {"", `{"ClientHost":"192.0.2.1","DownstreamStatus":200,"Duration":1500000,"RequestMethod":"GET","RequestPath":"/a","StartUTC":"2026-01-02T03:04:05.123456789Z","time":"2026-01-02T03:04:05Z"}`,
			"2026-01-02T03:04:05.123456789Z 192.0.2.1 /a []"},
		"combined and msec": {"", `192.0.2.1 - - [02/Jan/2026:03:04:05 +0000] "GET /a HTTP/1.1" 200 5 "-" "curl" 1767323045.250`,
			"2026-01-02T03:04:05.25Z 192.0.2.1 /a [{User-Agent curl}]"},
		"CloudFront": {"", "#Version: 1.0\n#Fields: date time c-ip cs-method cs(Host) cs-uri-stem sc-status cs(User-Agent) cs-uri-query time-taken\n2026-12-04\t21:02:31\t192.0.2.1\tGET\td111.cloudfront.net\t/a\t200\tcurl\tb=c\t0.001",
			"2026-12-04T21:02:30.999Z 192.0.2.1 /a?b=c [{User-Agent curl}]"},
		"Traefik": {"", `192.0.2.1 - - [02/Jan/2026:03:04:05 +0000] "GET /a HTTP/1.1" 200 5 "-" "curl" 1 "router@docker" "http://172.17.0.2:80" 10ms`,
			"2026-01-02T03:04:05Z 192.0.2.1 /a [{User-Agent curl}]"},
	} {
		var format *Format
		if c.format != "" {
			var err error
			if format, err = NewFormat(c.format); err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
		}
		all, _ := read(t, format, write(t, "log", c.text+"\n"))
		if len(all) != 1 {
			t.Errorf("%s: %d requests were read from %s; want 1", name, len(all), c.text)
			continue
		}
		e := all[0]
		if got := fmt.Sprintf("%s %v %s %v", e.Time.UTC().Format(time.RFC3339Nano), e.Address, e.Target, e.Headers); got != c.want {
			t.Errorf("%s is read as %s; want %s", name, got, c.want)
		}
	}
}

// TestTheFinestTimeOfALineCounts: the order of a line's times does not matter, and the step that is
// reported is that of the times in use.
func TestTheFinestTimeOfALineCounts(t *testing.T) {
	const address = `"remote_addr":"192.0.2.1","request":"GET /a HTTP/1.1"`
	for name, c := range map[string]struct {
		format, line, want string
		step               time.Duration
	}{
		"msec and time_iso8601": {"", `{"msec":"1767323045.250",` + address + `,"time_iso8601":"2026-01-02T03:04:05+00:00"}`, "03:04:05.25", time.Millisecond},
		"msec and time":         {"", `{"msec":1767323045.250,` + address + `,"time":"2026-01-02T03:04:05Z"}`, "03:04:05.25", time.Millisecond},
		"@timestamp and msec":   {"", `{"@timestamp":"2026-01-02T03:04:05Z","msec":1767323045.250,` + address + `}`, "03:04:05.25", time.Millisecond},
		"a format with msec first": {`$msec $remote_addr [$time_local] "$request"`, `1767323045.250 192.0.2.1 [02/Jan/2026:03:04:05 +0000] "GET /a HTTP/1.1"`,
			"03:04:05.25", time.Millisecond},
		"a format with msec last": {`$remote_addr [$time_local] "$request" $msec`, `192.0.2.1 [02/Jan/2026:03:04:05 +0000] "GET /a HTTP/1.1" 1767323045.250`,
			"03:04:05.25", time.Millisecond},
		"a start in whole seconds": {"", `{"StartUTC":"2026-01-02T03:04:05Z","msec":1767323046.250,` + address + `}`, "03:04:06.25", time.Millisecond},
		"a start that is as fine":  {"", `{"StartUTC":"2026-01-02T03:04:05.125Z","msec":1767323046.250,` + address + `}`, "03:04:05.125", time.Millisecond},
		"combined with fractions":  {"", `192.0.2.1 - - [02/Jan/2026:03:04:05.250 +0000] "GET /a HTTP/1.1" 200 1 "-" "curl"`, "03:04:05.25", time.Millisecond},
		"common with a comma":      {"", `192.0.2.1 - - [02/Jan/2026:03:04:05,250 +0000] "GET /a HTTP/1.1" 200 1`, "03:04:05.25", time.Millisecond},
		"whole seconds":            {"", `192.0.2.1 - - [02/Jan/2026:03:04:05 +0000] "GET /a HTTP/1.1" 200 1`, "03:04:05", time.Second},
	} {
		var format *Format
		if c.format != "" {
			var err error
			if format, err = NewFormat(c.format); err != nil {
				t.Fatal(err)
			}
		}
		all, stats := read(t, format, write(t, "log", c.line+"\n"))
		if len(all) != 1 {
			t.Errorf("%s: %d requests were read; want 1", name, len(all))
			continue
		}
		if got := all[0].Time.UTC().Format("15:04:05.999999999"); got != c.want || stats.Resolution != c.step || stats.Coarsest != c.step {
			t.Errorf("%s: the time is %s, in steps of %v to %v; want %s and %v", name, got, stats.Resolution, stats.Coarsest, c.want, c.step)
		}
	}
}

func TestFilesWithOtherStepsAreReported(t *testing.T) {
	fine := write(t, "fine", `{"msec":"1767323045.250","remote_addr":"192.0.2.1","request":"GET /a HTTP/1.1"}`+"\n")
	_, stats := read(t, nil, fine, write(t, "coarse", lines["common"].line+"\n"))
	if stats.Resolution != time.Millisecond || stats.Coarsest != time.Second {
		t.Errorf("the times are in steps of %v to %v; want 1ms to 1s", stats.Resolution, stats.Coarsest)
	}
}

func TestInvalidFormatsAreExplained(t *testing.T) {
	for format, want := range map[string]string{
		"apache":                         `there is no format "apache"; write envoy, alb`,
		"$remote_addr $request":          "the format has no time",
		"[$time_local] $status":          "the format has no path",
		"(?P<msec>":                      "is not a regular expression",
		"(?P<msec>.) (?P<remote_addr>.)": "the format has no path",
	} {
		if _, err := NewFormat(format); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want an error with %q", format, err, want)
		}
	}
	for name, text := range map[string]string{"unknown": "hello\nworld\n", "Markdown": "# Title\ntext\n", "empty": ""} {
		if _, err := Open([]string{write(t, name, text)}, nil, nil); err == nil {
			t.Errorf("a file of an %s format was opened", name)
		}
	}
	if _, err := Open([]string{"/none"}, nil, nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that does not exist: %v", err)
	}
}

func TestWrongLinesAreCounted(t *testing.T) {
	line := lines["common"].line
	text := strings.Repeat(line+"\n", 200) + "wrong\n\n" + line + "\n" + strings.Replace(line, "/ ", "/"+strings.Repeat("x", maxLine)+" ", 1) + "\n" + line
	all, stats := read(t, nil, write(t, "log", text))
	if len(all) != 202 || stats.Lines != 204 || stats.Rejected != 2 || stats.Examples[0].Line != 201 || stats.Examples[1].Line != 204 {
		t.Errorf("%d requests, %+v; want 202 of 204 lines, and lines 201 and 204 rejected", len(all), stats)
	}
}

// TestOrderAndFilesDoNotMatter: the requests of a log are the same, and in the same order, if its
// lines are shuffled within a minute, split into files, and compressed.
func TestOrderAndFilesDoNotMatter(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	start := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	var text []string
	for i := range 2000 {
		at := start.Add(time.Duration(i) * 100 * time.Millisecond)
		text = append(text, fmt.Sprintf(`192.0.2.%d - - [%s] "GET /%d HTTP/1.1" 200 1`, rng.IntN(256), at.Format("02/Jan/2006:15:04:05 -0700"), i))
	}
	want, _ := read(t, nil, write(t, "log", strings.Join(text, "\n")))
	for begin := 0; begin < len(text); begin += 250 { // so a line moves by at most 25 s
		part := text[begin : begin+250]
		rng.Shuffle(len(part), func(i, j int) { part[i], part[j] = part[j], part[i] })
	}
	var parts [3][]string
	for _, line := range text {
		n := rng.IntN(3)
		parts[n] = append(parts[n], line)
	}
	var zipped, packed bytes.Buffer
	z := gzip.NewWriter(&zipped)
	_, _ = io.WriteString(z, strings.Join(parts[1], "\n"))
	_ = z.Close()
	p, _ := zstd.NewWriter(&packed)
	_, _ = io.WriteString(p, strings.Join(parts[2], "\n"))
	_ = p.Close()
	got, stats := read(t, nil, write(t, "a.log", strings.Join(parts[0], "\n")), write(t, "b.gz", zipped.String()), write(t, "c.zst", packed.String()))
	if len(want) != 2000 || !reflect.DeepEqual(got, want) || stats.Late != 0 {
		t.Errorf("%d requests were read from three files, %d of them late; want the %d of one file", len(got), stats.Late, len(want))
	}
}

func TestLateRequestsAreCounted(t *testing.T) {
	line := func(at string) string { return strings.Replace(lines["common"].line, "13:55:36", at, 1) + "\n" }
	all, stats := read(t, nil, write(t, "log", line("13:00:00")+line("13:10:00")+line("13:20:00")+line("13:05:00")))
	if stats.Late != 1 || stats.First.Minute() != 0 || stats.Last.Minute() != 20 || all[2].Time.Minute() != 10 {
		t.Errorf("%+v, the third request at %v; want one that is late, and takes the time of the request before it", stats, all[2].Time)
	}
}

// A format is detected if most lines have it. The others are counted. An error names the format.
func TestFormatsAreDetectedAmongOtherLines(t *testing.T) {
	good, bad := lines["combined"].line+"\n", "203.0.113.9 - - [10/Oct/2026:13:55:36 +0000] \"-\" 408 0 \"-\" \"-\"\n"
	for _, c := range []struct{ bad, good int }{{6, 60}, {40, 60}, {49, 51}} {
		all, stats := read(t, nil, write(t, "log", "\ufeff"+strings.Repeat(bad, c.bad)+strings.Repeat(good, c.good)))
		if len(all) != c.good || stats.Rejected != int64(c.bad) || stats.Files[0].Format != "combined" || stats.Files[0].Unread != "" {
			t.Errorf("%+v: %d requests, %+v; want those of the format combined", c, len(all), stats)
		}
	}
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	_, _ = z.Write([]byte(strings.Repeat(good, 9)))
	_ = z.Close()
	for name, c := range map[string]struct{ text, want string }{
		"other lines": {strings.Repeat(bad, 60) + strings.Repeat(good, 40), "only 40 of the first 100 lines have the format combined; another one is \"203.0.113.9 "},
		"xz":          {"\xfd7zXZ\x00", "compressed by xz or zip; decompress it"},
		"zip":         {"PK\x03\x04", "compressed by xz or zip; decompress it"},
		"UTF-16":      {"\xff\xfe1\x00", "text in UTF-16"},
		"a list":      {"[\n{}]", "one object per line"},
		"cut gzip":    {zipped.String()[:zipped.Len()-12], "is it still being written?"},
	} {
		r, err := Open([]string{write(t, "log", c.text)}, nil, nil)
		for err == nil {
			_, err = r.Next()
		}
		if !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: the error is %v; want %q", name, err, c.want)
		}
	}
}

func FuzzFormats(f *testing.F) {
	for _, c := range lines {
		f.Add(c.line)
	}
	f.Fuzz(func(t *testing.T, line string) {
		for i := range builtIn {
			var fields fieldReader
			var e Entry
			builtIn[i].reads(&fields, line, &e)
		}
	})
}

// TestProgressEndsWithAllBytes: at the end, all bytes of the files are read. Their size is not
// known if one of them is standard input.
func TestProgressEndsWithAllBytes(t *testing.T) {
	line := `192.0.2.1 - - [04/Mar/2026:05:06:07 +0000] "GET / HTTP/1.1" 200 1` + "\n"
	path := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(path, []byte(line), 0o644); err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(t.TempDir(), "other")
	if err := os.WriteFile(other, []byte(line), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Open([]string{path, other, path}, nil, nil); err == nil || !strings.Contains(err.Error(), path+" is given twice") {
		t.Errorf("a file given twice: the error is %v; want one that names it", err)
	}
	for _, names := range [][]string{{path, other}, {path, "-"}} {
		r, err := Open(names, strings.NewReader(line), nil)
		if err != nil {
			t.Fatal(err)
		}
		var seen [2]int64
		r.OnRead = func(read, total int64) { seen = [2]int64{read, total} }
		for err == nil {
			_, err = r.Next()
		}
		all := int64(2 * len(line))
		wantTotal := all
		if names[1] == "-" {
			wantTotal = 0
		}
		if read, total := seen[0], seen[1]; read != all || total != wantTotal {
			t.Errorf("%v: %d of %d bytes are read; want %d of %d", names, read, total, all, wantTotal)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
}
