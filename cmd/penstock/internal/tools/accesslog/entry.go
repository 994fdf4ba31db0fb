// Package accesslog reads the access logs of web servers and proxies: which requests came when.
package accesslog

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"net/textproto"
	"strconv"
	"strings"
	"time"
)

// An Entry is one request of a log. Texts that the log lacks are empty.
type Entry struct {
	Time     time.Time     // when the request began, or ended if the log has no duration
	Duration time.Duration // 0 if it is not known
	Address  netip.Addr    // of the client, or of the proxy before the server; invalid if it is not known
	Method   string
	Host     string
	Target   string // the path and query, or a URL
	Status   int    // of the response; 0 if it is not known
	Headers  []Header
	User     string // the name of the user that logged in

	raw   string        // the line
	step  time.Duration // how exact the text of Time is; 0 while there is no Time
	isEnd bool          // Time is the end of the request, unless finish has changed it
}

// isBefore orders entries of one time by their lines, so that the order does not depend on files.
func (e *Entry) isBefore(other *Entry) bool {
	return cmp.Or(e.Time.Compare(other.Time), strings.Compare(e.raw, other.raw)) < 0
}

// A Header is a field of the request that the log has.
type Header struct{ Name, Value string }

// Values returns the values of a header.
func (e *Entry) Values(name string) (values []string) {
	for _, h := range e.Headers {
		if strings.EqualFold(h.Name, name) {
			values = append(values, h.Value)
		}
	}
	return values
}

// A fieldReader sets parts of entries from named values.
type fieldReader struct {
	lastText  string // of a time, and that time
	lastTime  time.Time
	durations bool // an entry had a duration
}

// A setter sets the part of an entry that a name stands for. It returns false if the value cannot
// be read.
type setter func(r *fieldReader, e *Entry, value string) bool

// setters has the names of nginx' variables, and those of other formats. Aliases are the keys that
// JSON logs use for the same values.
var setters = map[string]setter{
	"remote_addr":    setAddress,
	"remote_user":    func(_ *fieldReader, e *Entry, v string) bool { e.User = orEmpty(v); return true },
	"time_local":     timeIn(true, "02/Jan/2006:15:04:05 -0700"),
	"time_iso8601":   isoTime,
	"start_time":     timeIn(false, isoLayouts...),
	"haproxy_date":   timeIn(false, "02/Jan/2006:15:04:05.000"),
	"msec":           setUnixTime,
	"request":        setRequest,
	"request_method": func(_ *fieldReader, e *Entry, v string) bool { e.Method = v; return v != "" },
	"request_uri":    setTarget,
	"uri":            setTarget,
	"args":           func(_ *fieldReader, e *Entry, v string) bool { return setArgs(e, v) },
	"host":           func(_ *fieldReader, e *Entry, v string) bool { e.Host = orEmpty(v); return true },
	"status":         setStatus,
	"request_time":   func(r *fieldReader, e *Entry, v string) bool { return setDuration(r, e, v, time.Second) },
	"duration_ms":    func(r *fieldReader, e *Entry, v string) bool { return setDuration(r, e, v, time.Millisecond) },
	"duration_ns":    func(r *fieldReader, e *Entry, v string) bool { return setDuration(r, e, v, time.Nanosecond) },
}

// aliases has other names for the names of setters.
var aliases = map[string]string{
	"client_addr": "remote_addr", "clientip": "remote_addr", "client_ip": "remote_addr", "remote_ip": "remote_addr", "ip": "remote_addr", "c-ip": "remote_addr",
	"ClientHost": "remote_addr", "realip_remote_addr": "remote_addr", "http_user": "remote_user", "user": "remote_user",
	"@timestamp": "time_iso8601", "timestamp": "time_iso8601", "time": "time_iso8601", "ts": "msec", "StartUTC": "start_time",
	"verb": "request_method", "method": "request_method", "RequestMethod": "request_method", "cs-method": "request_method",
	"path": "request_uri", "url": "request_uri", "RequestPath": "request_uri", "cs-uri-stem": "request_uri", "cs-uri-query": "args", "query_string": "args",
	"http_host": "host", "server_name": "host", "vhost": "host", "RequestHost": "host", "x-host-header": "host", "authority": "host",
	"response": "status", "status_code": "status", "DownstreamStatus": "status", "sc-status": "status", "response_code": "status",
	"duration": "request_time", "time-taken": "request_time", "Duration": "duration_ns", "xff": "http_x_forwarded_for", "user_agent": "http_user_agent",
	"agent": "http_user_agent", "referer": "http_referer", "referrer": "http_referer", "cs(User-Agent)": "http_user_agent", "cs(Referer)": "http_referer",
	"x-forwarded-for": "http_x_forwarded_for", "request_X-Forwarded-For": "http_x_forwarded_for", "x_forwarded_for": "http_x_forwarded_for",
}

// standard returns the name that has a setter for an alias.
func standard(name string) string { return cmp.Or(aliases[name], name) }

// setterOf returns the setter of a name, or nil if the name means nothing here.
func setterOf(name string) setter {
	name = standard(name)
	if s, ok := setters[name]; ok {
		return s
	}
	if header, ok := strings.CutPrefix(name, "http_"); ok && header != "" {
		canonical := textproto.CanonicalMIMEHeaderKey(strings.ReplaceAll(header, "_", "-"))
		return func(_ *fieldReader, e *Entry, v string) bool {
			if v = orEmpty(v); v != "" {
				e.Headers = append(e.Headers, Header{canonical, v})
			}
			return true
		}
	}
	return nil
}

func settersOf(names []string) (all []setter) {
	for _, name := range names {
		all = append(all, setterOf(name))
	}
	return all
}

// setAll sets the parts of an entry that have a setter, and reports whether all could be read.
func (r *fieldReader) setAll(e *Entry, all []setter, values []string) bool {
	for i, set := range all {
		if set != nil && !set(r, e, values[i]) {
			return false
		}
	}
	return true
}

// orEmpty returns a value, or "" for the dash that logs write for no value.
func orEmpty(v string) string {
	if v == "-" {
		return ""
	}
	return v
}

// setAddress reads an address with or without a port. A host name and a unix socket are no
// address, but no mistake either.
func setAddress(_ *fieldReader, e *Entry, v string) bool {
	v, _, _ = strings.Cut(v, ", ")
	if a, err := netip.ParseAddr(strings.Trim(v, "[]")); err == nil {
		e.Address = a.Unmap()
		return true
	}
	if a, err := netip.ParseAddrPort(v); err == nil {
		e.Address = a.Addr().Unmap()
		return true
	}
	return v == "localhost" || v == "unix:" || strings.Contains(v, ".")
}

func setRequest(_ *fieldReader, e *Entry, v string) bool {
	method, rest, ok := strings.Cut(v, " ")
	target, _, _ := strings.Cut(rest, " ")
	if !ok || method == "" || target == "" {
		return false
	}
	e.Method, e.Target = method, target
	return true
}

func setTarget(_ *fieldReader, e *Entry, v string) bool {
	if query := strings.IndexByte(e.Target, '?'); query >= 0 && !strings.Contains(v, "?") && e.Target[0] == '?' {
		v += e.Target[query:] // the query came first
	}
	e.Target = v
	return v != ""
}

func setArgs(e *Entry, v string) bool {
	if v = orEmpty(v); v != "" && !strings.Contains(e.Target, "?") {
		e.Target += "?" + v
	}
	return true
}

func setStatus(_ *fieldReader, e *Entry, v string) bool {
	if v == "-" {
		return true
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < 0 || n > 999 {
		return false
	}
	e.Status = n
	return true
}

// maxRequestTime is the longest duration of a request that is accepted.
const maxRequestTime = 24 * time.Hour

func setDuration(r *fieldReader, e *Entry, v string, unit time.Duration) bool {
	if v == "-" || v == "" {
		return true
	}
	d, err := time.ParseDuration(v) // a log may write the unit
	if n, numberErr := strconv.ParseFloat(v, 64); numberErr == nil {
		d, err = time.Duration(n*float64(unit)), nil
		if !(math.Abs(n)*float64(unit) <= float64(maxRequestTime)) {
			return false
		}
	}
	if err != nil || d > maxRequestTime {
		return false
	}
	e.Duration, r.durations = max(d, 0), true
	return true
}

// setTime sets the time of an entry, unless it has a better one. step is how exact the text is that
// the time came from. The finest time of a line is the best. Of equally fine ones, it is the start.
func setTime(e *Entry, t time.Time, step time.Duration, isEnd bool) bool {
	if y := t.Year(); y < 1971 || y > 2100 {
		return false
	}
	isWorse := step > e.step || step == e.step && isEnd && !e.isEnd
	if e.step > 0 && isWorse {
		return true
	}
	e.Time, e.step, e.isEnd = t, step, isEnd
	return true
}

var (
	isoLayouts = []string{time.RFC3339, "2006-01-02T15:04:05", "2006-01-02 15:04:05"}
	isoTime    = timeIn(true, isoLayouts...)
)

// timeIn returns the setter of a time in one of the layouts. Most lines have the time of the line
// before.
func timeIn(isEnd bool, layouts ...string) setter {
	return func(r *fieldReader, e *Entry, v string) bool {
		for i := 0; v != r.lastText; i++ {
			if i == len(layouts) {
				return false
			}
			if t, err := time.Parse(layouts[i], v); err == nil {
				r.lastText, r.lastTime = strings.Clone(v), t
			}
		}
		return v != "" && setTime(e, r.lastTime, stepOf(v), isEnd)
	}
}

// stepOf returns how exact the seconds of a text are: 1 ms for three digits behind the point.
func stepOf(v string) time.Duration {
	step := time.Second
	point := strings.IndexAny(v, ".,") // time.Parse takes both
	if point < 0 {
		return step
	}
	for _, c := range v[point+1:] {
		if c < '0' || c > '9' || step == 1 {
			break
		}
		step /= 10
	}
	return step
}

// leastUnixTime is in 1973. A smaller number is not the time of a request.
const leastUnixTime = 100_000_000

// setUnixTime reads the seconds since 1970, with a fraction.
func setUnixTime(r *fieldReader, e *Entry, v string) bool {
	whole, fraction, _ := strings.Cut(v, ".")
	seconds, err := strconv.ParseInt(whole, 10, 64)
	if err != nil {
		return isoTime(r, e, v) // a JSON log may call this ts too
	}
	if len(fraction) > 9 {
		fraction = fraction[:9]
	}
	nanos, err := strconv.ParseUint(fraction+strings.Repeat("0", 9-len(fraction)), 10, 64)
	return err == nil && seconds >= leastUnixTime && setTime(e, time.Unix(seconds, int64(nanos)), stepOf(v), true)
}

// finish completes an entry, and returns why it is no request, or nil.
func (r *fieldReader) finish(e *Entry) error {
	switch {
	case e.Time.IsZero():
		return fmt.Errorf("it has no time")
	case e.Target == "" || e.Target == "-":
		return fmt.Errorf("it has no path")
	}
	if e.Method == "" {
		e.Method = "GET"
	}
	if e.isEnd {
		e.Time = e.Time.Add(-e.Duration)
	}
	return nil
}
