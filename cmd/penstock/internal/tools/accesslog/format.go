package accesslog

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/penstock/penstock/internal/wording"
)

// A Format reads the lines of one kind of log.
type Format struct {
	Name  string
	parse parser
}

// A parser reads a line into an entry. rest is what the line has behind what the format describes.
type parser func(r *fieldReader, line string, e *Entry) (rest string, ok bool)

// Formats are the formats that are detected, the most specific first.
func Formats() []Format { return builtIn }

// combined is the format of nginx and Apache with this name.
const combined = `$remote_addr $ident $remote_user [$time_local] "$request" $status $size "$http_referer" "$http_user_agent"`

var builtIn = []Format{
	{"envoy", pattern(`[$start_time] "$request" $status $flags $received $sent $duration_ms $upstream_time "$http_x_forwarded_for" "$http_user_agent" "$request_id" "$host" "$upstream"`)},
	{"alb", pattern(`$type $ended $elb $remote_addr $target $request_time $target_time $response_time $status $target_status $received $sent "$request" "$http_user_agent" $cipher $protocol $group "$trace" "$domain" "$certificate" $priority $start_time `)},
	{"haproxy", haproxy},
	{"vhost-combined", pattern("$host " + combined)},
	{"combined-msec", pattern(combined + " $msec")},
	{"combined", pattern(combined)},
	{"common", pattern(`$remote_addr $ident $remote_user [$time_local] "$request" $status $size`)},
	{"json", parseJSON},
}

// NewFormat reads a format that a user has written: the name of a built-in one, a log_format of
// nginx, or a regular expression with named groups. A log_format is the whole directive, or the
// text in its quotes.
func NewFormat(text string) (*Format, error) {
	var names []string
	for i := range builtIn {
		if builtIn[i].Name == text {
			return &builtIn[i], nil
		}
		names = append(names, builtIn[i].Name)
	}
	if directive := logFormat.FindStringSubmatch(text); directive != nil {
		text = joinParts(directive[1])
	}
	switch {
	case strings.Contains(text, "(?P<"), strings.Contains(text, "(?<"):
		return newExpression(text)
	case strings.Contains(text, "$"):
		return newPattern(text)
	}
	return nil, fmt.Errorf("there is no format %q; write %s, a log_format of nginx such as '$remote_addr [$time_local] \"$request\" $status', or a regular expression with groups such as (?P<remote_addr>\\S+)",
		wording.Clip(text), wording.List(names, "or"))
}

var (
	logFormat  = regexp.MustCompile(`(?s)^\s*log_format\s+\S+\s+(?:escape=\w+\s+)?(.*?)\s*;?\s*$`)
	quotedPart = regexp.MustCompile(`'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)"`)
	unescape   = strings.NewReplacer(`\'`, `'`, `\"`, `"`, `\\`, `\`)
)

// joinParts returns the format of a log_format directive, which may be in several quoted parts.
func joinParts(parts string) string {
	all := quotedPart.FindAllStringSubmatch(parts, -1)
	if all == nil {
		return parts
	}
	var format strings.Builder
	for _, part := range all {
		format.WriteString(unescape.Replace(part[1] + part[2]))
	}
	return format.String()
}

// needsTimeAndPath returns an error if the names of a user's format cannot make a request.
func needsTimeAndPath(names []string) error {
	has := func(candidates ...string) bool {
		return slices.ContainsFunc(names, func(n string) bool { return slices.Contains(candidates, standard(n)) })
	}
	switch {
	case !has("time_local", "time_iso8601", "start_time", "msec", "haproxy_date"):
		return errors.New("the format has no time; it needs time_local, time_iso8601, start_time or msec")
	case !has("request", "request_uri", "uri"):
		return errors.New("the format has no path; it needs request, request_uri or uri")
	}
	return nil
}

var variable = regexp.MustCompile(`\$(?:\{(\w+)\}|(\w+))`)

// newPattern compiles a log_format of nginx.
func newPattern(text string) (*Format, error) {
	var names []string
	for _, m := range variable.FindAllStringSubmatch(text, -1) {
		names = append(names, m[1]+m[2])
	}
	if err := needsTimeAndPath(names); err != nil {
		return nil, err
	}
	return &Format{"pattern", pattern(text)}, nil
}

// A piece is a variable and the literal text behind it.
type piece struct {
	set     setter // nil: the value does not matter
	isQuote bool   // the value stands in quotes, so it ends at the first one that is not escaped
	until   string // "": the value ends at the end of the line
}

// pattern compiles a text with variables. A line may have more text behind what the pattern
// describes if the pattern ends with a literal.
func pattern(text string) parser {
	at := variable.FindAllStringSubmatchIndex(text, -1)
	start := text[:at[0][0]]
	var pieces []piece
	for i, m := range at {
		end := len(text)
		if i+1 < len(at) {
			end = at[i+1][0]
		}
		name, until := strings.Trim(text[m[0]:m[1]], "${}"), text[m[1]:end]
		isQuote := m[0] > 0 && text[m[0]-1] == '"' && strings.HasPrefix(until, `"`)
		pieces = append(pieces, piece{setterOf(name), isQuote, until})
	}
	return func(r *fieldReader, line string, e *Entry) (rest string, ok bool) {
		rest, ok = strings.CutPrefix(line, start)
		for i := 0; ok && i < len(pieces); i++ {
			p := &pieces[i]
			var value string
			if value, rest, ok = p.cut(rest); ok && p.set != nil {
				ok = p.set(r, e, value)
			}
		}
		return rest, ok
	}
}

func (p *piece) cut(text string) (value, rest string, ok bool) {
	if p.until == "" {
		value, rest, _ = strings.Cut(text, " ") // what a server writes behind it does not matter
		return value, rest, value != ""
	}
	if !p.isQuote {
		return strings.Cut(text, p.until)
	}
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case '"':
			if rest, ok = strings.CutPrefix(text[i:], p.until); ok {
				return text[:i], rest, true
			}
		}
	}
	return "", "", false
}

func newExpression(text string) (*Format, error) {
	e, err := regexp.Compile(text)
	if err != nil {
		return nil, fmt.Errorf("the format is not a regular expression: %w", err)
	}
	names := e.SubexpNames()
	if err := needsTimeAndPath(names); err != nil {
		return nil, err
	}
	all := settersOf(names) // the first is that of the whole line, which has no name
	return &Format{"expression", func(r *fieldReader, line string, entry *Entry) (rest string, ok bool) {
		m := e.FindStringSubmatch(line)
		return "", m != nil && r.setAll(entry, all, m)
	}}, nil
}

var haproxyLine = pattern(`$remote_addr [$haproxy_date] $frontend $server $times $status $size $cookie $response_cookie $state $connections $queues `)

// haproxy reads a line of HAProxy's httplog, with or without the header of syslog.
func haproxy(r *fieldReader, line string, e *Entry) (rest string, ok bool) {
	if _, after, ok := strings.Cut(line, "]: "); ok {
		line = after
	}
	first := strings.LastIndex(line, ` "`) // captured headers may stand before the request
	if first <= 0 {
		return "", false
	}
	if _, ok := haproxyLine(r, line[:first+1], e); !ok {
		return "", false
	}
	return "", setRequest(r, e, strings.TrimSuffix(line[first+2:], `"`))
}

// parseJSON reads an object. Its keys, and those of the object request in it, are names of values.
func parseJSON(r *fieldReader, line string, e *Entry) (rest string, ok bool) {
	if !strings.HasPrefix(line, "{") {
		return "", false
	}
	var object map[string]json.RawMessage
	if json.Unmarshal([]byte(line), &object) != nil {
		return "", false
	}
	if nested := object["request"]; len(nested) > 0 && nested[0] == '{' { // of Caddy
		delete(object, "request")
		var headers struct{ Headers map[string][]string }
		if json.Unmarshal(nested, &object) != nil || json.Unmarshal(nested, &headers) != nil {
			return "", false
		}
		if object["client_ip"] != nil {
			delete(object, "remote_ip") // of a proxy
		}
		for _, name := range sortedKeys(headers.Headers) {
			for _, value := range headers.Headers[name] {
				e.Headers = append(e.Headers, Header{name, value})
			}
		}
	}
	for _, name := range sortedKeys(object) {
		set := setterOf(name)
		value, ok := textOf(object[name])
		if set != nil && ok && !set(r, e, value) {
			return "", false
		}
	}
	return "", true
}

func textOf(raw json.RawMessage) (string, bool) {
	if len(raw) == 0 || raw[0] == '{' || raw[0] == '[' || raw[0] == 'n' || raw[0] == 't' || raw[0] == 'f' {
		return "", false
	}
	if raw[0] != '"' {
		return string(raw), true
	}
	var text string
	err := json.Unmarshal(raw, &text)
	return text, err == nil
}
