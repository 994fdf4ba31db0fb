package policy

import (
	"bytes"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/penstock/penstock/internal/syntax"
)

// Paths defines how the paths of requests are read before rules are matched. Every spelling of a
// path becomes one canonical path. A path that servers read in different ways is rejected. The zero
// value is the strict form, which suits most servers. The upstream must get the path that the rules
// matched, so a proxy must forward the path that Rewrite wrote.
//
// A canonical path, with any Paths,
//
//   - begins with '/', and has no empty segment except at its end: // becomes /
//   - has no segment . or .. : they are resolved, and .. of the root is the root
//   - has letters, digits and -._~!$&'()*+,;=:@ as they are, and all other bytes as %XX in upper
//     case. So %41 becomes A, and %3a becomes a colon. Nothing is decoded twice: %252F does not
//     change
//   - is UTF-8 without ASCII control characters when decoded. Other encodings, also Latin-1 and
//     overlong UTF-8, are rejected. Unicode is not normalized
//
// A dot segment that only some servers see is rejected, such as /..;x/ with a parameter or /..%2F
// with an encoded slash.
type Paths struct {
	// KeepEncodedSlash allows %2F, %5C and \ (which becomes %5C) in a segment, as some names of
	// packages or branches need. By default they are rejected, because servers differ in whether they
	// separate segments.
	KeepEncodedSlash bool

	// IgnoreTrailingSlash makes /a/ equal to /a. By default they are two paths.
	IgnoreTrailingSlash bool

	// IgnoreCase makes ASCII letters lower case, for servers that ignore case. It rejects the letters
	// U+0130, U+017F and U+212A, which some of these servers read as i, s and k. By default /A and /a
	// are two paths.
	IgnoreCase bool

	// StripParameters removes ';' (or %3B) and the text after it from each segment, as Java servers do
	// before they match. So /a;v=1/b becomes /a/b, and /..;v=1/ becomes /../. By default a parameter
	// is part of its segment.
	StripParameters bool
}

// Clean returns the canonical form of a path. The path is given in escaped form, as by
// [url.URL.EscapedPath]. Bytes that should have been escaped are escaped. The empty path becomes
// "/", and "*" (of OPTIONS) stays. The error says what is wrong and where, and the request must be
// rejected. A canonical path is returned unchanged, without an allocation if it has no '%' or at
// most 256 bytes.
func (p Paths) Clean(escaped string) (string, error) {
	switch {
	case escaped == "":
		return "/", nil
	case escaped == "*" || p.isPlain(escaped):
		return escaped, nil
	case escaped[0] != '/':
		return "", fmt.Errorf("path: %.40q does not begin with a slash; write /path", escaped)
	}

	var buffer [256]byte
	var err error
	b := append(buffer[:0], '/')
	for at := 1; at <= len(escaped); {
		segment, _, hasMore := strings.Cut(escaped[at:], "/")
		end := at + len(segment)
		start := len(b) // the index in b at which the segment begins
		if b, err = p.appendSegment(b, escaped, at, end); err != nil {
			return "", err
		}
		switch name := b[start:]; {
		case len(name) == 0 || string(name) == ".":
			b = b[:start]
		case string(name) == "..":
			b = removeLastSegment(b[:start])
		case hidesDots(name):
			return "", badPath(escaped, at, end, "is a dot segment to some servers only; "+
				"write . and .. without parameters and encoded slashes")
		case hasMore:
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

// removeLastSegment removes the last segment of a path that ends with a slash. The root stays.
func removeLastSegment(path []byte) []byte {
	end := max(1, len(path)-1) // before the last slash
	return path[:1+bytes.LastIndexByte(path[:end], '/')]
}

// Rewrite sets the path of u so that u.EscapedPath is canonical and u.Path is its decoded form. The
// result changed is false if u was already so. The query stays. The error says what is wrong and
// where. After an error, u is unchanged.
func (p Paths) Rewrite(u *url.URL) (changed bool, err error) {
	if u.Opaque != "" {
		return false, fmt.Errorf("path: %.40q has none; write /path or scheme://host/path", u.Scheme+":"+u.Opaque)
	}
	sent := u.EscapedPath()
	canonical, err := p.Clean(writtenPath(u, sent))
	if err != nil || canonical == sent {
		return false, err
	}
	u.Path, _ = url.PathUnescape(canonical) // a canonical path can always be unescaped
	u.RawPath = ""
	if u.EscapedPath() != canonical {
		u.RawPath = canonical
	}
	return true, nil
}

// writtenPath returns the path as the client wrote it. EscapedPath differs from it if a byte should
// have been escaped: it then escapes Path again, and an encoded slash becomes a slash.
func writtenPath(u *url.URL, escapedPath string) string {
	if u.RawPath != "" && u.RawPath != escapedPath {
		if path, err := url.PathUnescape(u.RawPath); err == nil && path == u.Path {
			return u.RawPath
		}
	}
	return escapedPath
}

// isPlain is a fast check. If it returns true, the path is canonical. It returns false for some
// canonical paths: those with '%' or with a segment that begins with a dot.
func (p Paths) isPlain(path string) bool {
	isAfterSlash := false
	for i := range len(path) {
		c := path[i]
		switch {
		case c == '/':
			if isAfterSlash {
				return false
			}
		case i == 0, !pchar[c], isAfterSlash && c == '.', p.StripParameters && c == ';', p.IgnoreCase && lowerASCII(c) != c:
			return false
		}
		isAfterSlash = c == '/'
	}
	hasTrailingSlash := isAfterSlash && len(path) > 1
	return !hasTrailingSlash || !p.IgnoreTrailingSlash
}

// appendSegment appends the canonical form of escaped[at:end], which has no slash.
func (p Paths) appendSegment(b []byte, escaped string, at, end int) ([]byte, error) {
	start := len(b)
	for at < end {
		c, width := decodeByte(escaped[at:end])
		switch {
		case width == 0:
			return nil, badPath(escaped, at, min(at+encodedLength, end), "is not a percent-encoding; write % as %25")
		case c < ' ' || c == 0x7f:
			return nil, badPath(escaped, at, at+width, "is a control character; remove it")
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
				return nil, badPath(escaped, at, min(at+encodedLength, end), "does not begin a character of UTF-8; write the path in UTF-8")
			}
			if p.IgnoreCase && (r == '\u0130' || r == '\u017F' || r == '\u212A') {
				return nil, badPath(escaped, at, at+width, "is an ASCII letter to some servers that ignore case; write i, s or k")
			}
			var buffer [utf8.UTFMax]byte
			for _, c := range utf8.AppendRune(buffer[:0], r) {
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

// hidesDots reports whether a part of a canonical segment is . or .. . The parts are separated by
// encoded slashes, and parameters are ignored.
func hidesDots(segment []byte) bool {
	for hasMore := true; hasMore; {
		var part []byte
		part, segment, hasMore = cutEncodedSlash(segment)
		name, _, _ := bytes.Cut(part, []byte(";"))
		if string(name) == "." || string(name) == ".." {
			return true
		}
	}
	return false
}

// cutEncodedSlash cuts a canonical segment around its first %2F or %5C.
func cutEncodedSlash(segment []byte) (before, after []byte, found bool) {
	for i := 0; i+encodedLength <= len(segment); i++ {
		if code := string(segment[i : i+encodedLength]); code == "%2F" || code == "%5C" {
			return segment[:i], segment[i+encodedLength:], true
		}
	}
	return segment, nil, false
}

func badPath(escaped string, at, end int, what string) error {
	return fmt.Errorf("path: %.40q at offset %d %s", escaped[at:end], at, what)
}

// pchar are the bytes that need no escape in a segment, as RFC 3986 defines pchar.
var pchar = func() (t [256]bool) {
	for c := range t {
		t[c] = syntax.IsAlphanumeric(rune(c)) || strings.IndexByte("-._~!$&'()*+,;=:@", byte(c)) >= 0
	}
	return t
}()

func lowerASCII(c byte) byte {
	if c >= 'A' && c <= 'Z' {
		c += 'a' - 'A'
	}
	return c
}

// encodedLength is the length of a percent-encoded byte, in bytes.
const encodedLength = len("%2F")

// decodeByte reads the byte at the start of s, which may be percent-encoded. It also returns the
// byte's length in s, or 0 if the byte is malformed.
func decodeByte(s string) (c byte, width int) {
	if s[0] != '%' {
		return s[0], 1
	}
	if len(s) < encodedLength {
		return 0, 0
	}
	n, err := strconv.ParseUint(s[1:encodedLength], 16, 8)
	if err != nil {
		return 0, 0
	}
	return byte(n), encodedLength
}

// decodeRune reads the character at the start of s, whose bytes may be percent-encoded. It also
// returns the character's length in s, or 0 if the character is malformed.
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
