package policy

import (
	"bytes"
	"fmt"
	"net/url"
	"strings"
	"unicode/utf8"
)

// Paths says how the paths of requests are read before rules are matched with them: every spelling
// of a path becomes one, and what servers read differently is refused. The zero value is the strict
// reading, which suits most servers. The server behind must get the path that the rules saw, so
// a proxy must forward the path that Rewrite wrote.
//
// A canonical path, whatever the fields say,
//
//   - begins with '/', and has no empty segment but a last one: // is /;
//   - has no segment . or .. : they are resolved, and above the root is the root;
//   - has letters, digits and -._~!$&'()*+,;=:@ as themselves, and all other bytes as %XX in upper
//     case, so %41 is A and %3a is a colon. Nothing is decoded twice: %252F stays as it is;
//   - is UTF-8 without ASCII control characters once decoded: others, Latin-1 and overlong forms
//     too, are refused. Unicode is not normalised.
//
// A dot segment that only some servers see, as in /..;x/ with its parameter or /..%2F with its
// encoded slash, is refused.
type Paths struct {
	// KeepEncodedSlash lets %2F, %5C and \ (which becomes %5C) be part of a segment, as names of
	// packages or branches need. By default they are refused, because servers differ in whether they
	// part segments.
	KeepEncodedSlash bool

	// IgnoreTrailingSlash makes /a/ the path /a. By default they are two.
	IgnoreTrailingSlash bool

	// IgnoreCase makes ASCII letters lower case, for servers that do not tell them apart. By default
	// /A and /a are two paths.
	IgnoreCase bool

	// StripParameters removes a ';' (or %3B) and what follows it in each segment, as servers for Java
	// do before they match: /a;v=1/b is /a/b, and /..;v=1/ is /../. By default a parameter is a part
	// of its segment.
	StripParameters bool
}

// Clean returns the canonical spelling of a path, which is given in its escaped form, as by
// [url.URL.EscapedPath]; bytes that should have been escaped are. The empty path is "/", and "*"
// (of OPTIONS) is itself. An error says what is wrong and where, and the request is to be refused.
// What is canonical is returned as it is, without an allocation if it has no '%' or is short.
func (p Paths) Clean(escaped string) (string, error) {
	switch {
	case escaped == "":
		return "/", nil
	case escaped == "*" || p.plain(escaped):
		return escaped, nil
	case escaped[0] != '/':
		return "", fmt.Errorf("path: %.40q does not begin with a slash; write /path", escaped)
	}

	var room [256]byte
	var err error
	b := append(room[:0], '/')
	for at := 1; at <= len(escaped); {
		segment, _, more := strings.Cut(escaped[at:], "/")
		end := at + len(segment)
		start := len(b) // after the slash before the segment
		if b, err = p.appendSegment(b, escaped, at, end); err != nil {
			return "", err
		}
		switch name := b[start:]; {
		case len(name) == 0 || string(name) == ".":
			b = b[:start]
		case string(name) == "..":
			b = b[:1+bytes.LastIndexByte(b[:max(1, start-1)], '/')]
		case hidesDots(name):
			return "", badPath(escaped, at, end, "is a dot segment to some servers only; "+
				"write . and .. without parameters and encoded slashes")
		case more:
			b = append(b, '/')
		}
		at = end + 1
	}
	if p.IgnoreTrailingSlash && len(b) > 1 {
		b = bytes.TrimSuffix(b, []byte("/"))
	}
	if string(b) == escaped {
		return escaped, nil
	}
	return string(b), nil
}

// Rewrite sets the path of u so that u.EscapedPath is canonical and u.Path is what it decodes to,
// and tells whether that changed anything. The query is never touched. After an error, which says
// what is wrong and where, u is as it was.
func (p Paths) Rewrite(u *url.URL) (changed bool, err error) {
	if u.Opaque != "" {
		return false, fmt.Errorf("path: %.40q has none; write /path or scheme://host/path", u.Scheme+":"+u.Opaque)
	}
	sent := u.EscapedPath()
	canonical, err := p.Clean(writtenPath(u, sent))
	if err != nil || canonical == sent {
		return false, err
	}
	u.Path, _ = url.PathUnescape(canonical) // what is canonical can be unescaped
	u.RawPath = ""
	if u.EscapedPath() != canonical {
		u.RawPath = canonical
	}
	return true, nil
}

// writtenPath is the path as the client wrote it. EscapedPath is another one if a byte should have
// been escaped: then it makes a new one of Path, in which an encoded slash is a slash.
func writtenPath(u *url.URL, escapedPath string) string {
	if u.RawPath != "" && u.RawPath != escapedPath {
		if path, err := url.PathUnescape(u.RawPath); err == nil && path == u.Path {
			return u.RawPath
		}
	}
	return escapedPath
}

// plain tells for most of the paths that are canonical that they are: those without '%' and without
// a segment that begins with a dot.
func (p Paths) plain(path string) bool {
	slash := false // whether the byte before was one
	for i := range len(path) {
		c := path[i]
		switch {
		case c == '/':
			if slash {
				return false
			}
		case i == 0, !pchar[c], slash && c == '.', p.StripParameters && c == ';', p.IgnoreCase && lowerASCII(c) != c:
			return false
		}
		slash = c == '/'
	}
	return !slash || len(path) == 1 || !p.IgnoreTrailingSlash
}

// appendSegment appends the canonical spelling of escaped[at:end], which has no slash.
func (p Paths) appendSegment(b []byte, escaped string, at, end int) ([]byte, error) {
	start := len(b)
	for at < end {
		c, width := decodeByte(escaped[at:end])
		switch {
		case width == 0:
			return nil, badPath(escaped, at, min(at+3, end), "is not a percent-encoding; write % as %25")
		case c < ' ' || c == 0x7f:
			return nil, badPath(escaped, at, at+width, "is a control character; leave it out")
		case width == 1 && (c == '?' || c == '#'):
			return nil, badPath(escaped, at, at+width, "ends a path; write it as %3F or %23 if it belongs to the path")
		case c == '/' || c == '\\':
			if !p.KeepEncodedSlash {
				return nil, badPath(escaped, at, at+width, "is a slash to some servers only; write /")
			}
			b = appendEncoded(b, c)
		case c >= utf8.RuneSelf:
			var r rune
			if r, width = decodeRune(escaped[at:end]); width == 0 {
				return nil, badPath(escaped, at, min(at+3, end), "does not begin a character of UTF-8; write the path in UTF-8")
			}
			var room [utf8.UTFMax]byte
			for _, c := range utf8.AppendRune(room[:0], r) {
				b = appendEncoded(b, c)
			}
		case !pchar[c]:
			b = appendEncoded(b, c)
		case p.IgnoreCase:
			b = append(b, lowerASCII(c))
		default:
			b = append(b, c)
		}
		at += width
	}
	if p.StripParameters {
		name, _, _ := bytes.Cut(b[start:], []byte(";"))
		b = b[:start+len(name)]
	}
	return b, nil
}

// hidesDots tells whether a part of a canonical segment, between encoded slashes and before its
// parameters, is . or .. .
func hidesDots(segment []byte) bool {
	for more := true; more; {
		var part []byte
		part, segment, more = cutEncodedSlash(segment)
		name, _, _ := bytes.Cut(part, []byte(";"))
		if string(name) == "." || string(name) == ".." {
			return true
		}
	}
	return false
}

func cutEncodedSlash(segment []byte) (before, after []byte, found bool) {
	for i := 0; i+3 <= len(segment); i++ {
		if code := string(segment[i : i+3]); code == "%2F" || code == "%5C" {
			return segment[:i], segment[i+3:], true
		}
	}
	return segment, nil, false
}

// badPath is the error of a path in which escaped[at:end] is wrong.
func badPath(escaped string, at, end int, what string) error {
	return fmt.Errorf("path: %.40q at offset %d %s", escaped[at:end], at, what)
}

// pchar are the bytes that stand for themselves in a segment, as RFC 3986 defines pchar.
var pchar = func() (t [256]bool) {
	for c := range t {
		t[c] = c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' ||
			c < utf8.RuneSelf && strings.IndexByte("-._~!$&'()*+,;=:@", byte(c)) >= 0
	}
	return t
}()

func lowerASCII(c byte) byte {
	if c >= 'A' && c <= 'Z' {
		c += 'a' - 'A'
	}
	return c
}

// decodeByte reads the byte at the start of s, which may be percent-encoded, and tells how long it
// is there: 0 if it is malformed.
func decodeByte(s string) (c byte, width int) {
	if s[0] != '%' {
		return s[0], 1
	}
	if len(s) < 3 {
		return 0, 0
	}
	high, low := unhex(s[1]), unhex(s[2])
	if high < 0 || low < 0 {
		return 0, 0
	}
	return byte(high<<4 | low), 3
}

// decodeRune reads the character at the start of s, as decodeByte reads a byte.
func decodeRune(s string) (r rune, width int) {
	var encoded [utf8.UTFMax]byte
	n := 0
	for width < len(s) && !utf8.FullRune(encoded[:n]) {
		c, w := decodeByte(s[width:])
		if w == 0 {
			return 0, 0
		}
		encoded[n] = c
		n, width = n+1, width+w
	}
	r, size := utf8.DecodeRune(encoded[:n])
	if r == utf8.RuneError && size <= 1 {
		return 0, 0
	}
	return r, width
}

func appendEncoded(b []byte, c byte) []byte {
	const digits = "0123456789ABCDEF"
	return append(b, '%', digits[c>>4], digits[c&15])
}

// unhex is the value of a hexadecimal digit, or -1.
func unhex(c byte) int {
	switch {
	case c >= '0' && c <= '9':
		return int(c - '0')
	case c >= 'a' && c <= 'f':
		return int(c-'a') + 10
	case c >= 'A' && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}
