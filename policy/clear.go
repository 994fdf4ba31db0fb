package policy

import (
	"encoding/base64"
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// What identifies a client must be readable in exactly one way: otherwise a request could be one
// client's for the rules and another's for the upstream. This file decides which spellings of
// headers, cookies, parameters and tokens are accepted. A request with any other is malformed.

// identifies is the text of a header, a cookie or a parameter that says who the client is; "" if
// the request has none. If it can be read in several ways, the request is noted as unclear.
func (q *request) identifies(s *Source) string {
	values := q.a.Lookup(s.Kind, s.Name)
	if why := hidden(q.a, s); why != "" {
		q.noteUnclear(s.String() + " " + why)
		return ""
	}
	if len(values) == 0 {
		return ""
	}
	text, why := values[0], ""
	switch {
	case s.Kind == KindQuery && queryDiffers(first(q.a, KindRawQuery)):
		why = "stands in a query with a semicolon or a broken escape, which servers read in different ways"
	case len(values) > 1:
		why = fmt.Sprintf("is sent %d times", len(values))
	case s.Kind == KindHeader && isAuthorization(s.Name):
		text, why = authorization(text)
	case s.Kind == KindCookie && strings.ContainsFunc(text, endsCookie):
		why = "has white space, a comma, a quote, a backslash or a control character"
	case s.Kind == KindCookie:
		if decoded, err := url.PathUnescape(text); err == nil {
			text = decoded // some servers decode it, and must see the same client
		}
		why = unclear(text)
	default:
		why = unclear(text)
	}
	if why == "" && s.Kind != KindQuery && strings.Contains(text, ",") && !(s.Kind == KindHeader && hasCommas(s.Name)) {
		why = "has a comma, which some servers read as several values"
	}
	if why != "" {
		q.noteUnclear(s.String() + " " + why)
		return ""
	}
	return text
}

// hidden says why some servers may find a header or a cookie where others find none, or nothing.
func hidden(a Attributes, s *Source) string {
	switch s.Kind {
	case KindHeader:
		return droppedHeader(a, s.Name)
	case KindCookie:
		if why := droppedHeader(a, "Cookie"); why != "" {
			return why
		}
		return hiddenCookie(a, s.Name)
	}
	return ""
}

// droppedHeader says that the next proxy would not send a header on, or nothing.
func droppedHeader(a Attributes, name string) string {
	for _, line := range a.Lookup(KindHeader, "Connection") {
		for option := range strings.FieldsFuncSeq(line, func(r rune) bool { return r >= utf8.RuneSelf || !IsToken(string(r)) }) {
			if strings.EqualFold(option, name) {
				return "is named in Connection, so that proxies do not send it on"
			}
		}
	}
	return ""
}

// queryDiffers tells whether servers split a query in different ways: some end a parameter at a
// semicolon, and some drop one with a broken escape.
func queryDiffers(query string) bool {
	if strings.Contains(query, ";") {
		return true
	}
	_, err := url.QueryUnescape(query)
	return err != nil
}

// hiddenCookie says why some servers may find a cookie of this name where others find none, or
// nothing. Some of them end a cookie at white space or a comma, or let quotes reach over
// semicolons.
func hiddenCookie(a Attributes, name string) string {
	plain, open := false, false
	for pair := range strings.SplitSeq(strings.Join(a.Lookup(KindHeader, "Cookie"), ";"), ";") {
		pair = strings.TrimSpace(pair)
		known, value, _ := strings.Cut(pair, "=")
		switch {
		case strings.EqualFold(strings.TrimSpace(known), name):
			plain = true
		case strings.ContainsFunc(pair, endsCookie) && assigns(pair, name):
			return "stands within another cookie, as some servers read it"
		default:
			open = open || isOpen(strings.TrimSpace(value))
		}
	}
	if plain && open {
		return "stands beside a cookie with a quote that is not closed"
	}
	return ""
}

// endsCookie tells whether some server ends a cookie at a letter, or reads it as an escape.
func endsCookie(r rune) bool {
	return r <= ' ' || r == ',' || r == '"' || r == '\\' || r >= 0x7f && !unicode.IsPrint(r)
}

// isOpen tells whether a value begins with a quote that nothing closes.
func isOpen(value string) bool {
	if !strings.HasPrefix(value, `"`) {
		return false
	}
	for i := 1; i < len(value); i++ {
		switch value[i] {
		case '\\':
			i++
		case '"':
			return false
		}
	}
	return true
}

// assigns tells whether a text has a name, behind no other letter of one, and an equals sign behind
// it.
func assigns(text, name string) bool {
	for i := 0; i+len(name) < len(text); i++ {
		if strings.EqualFold(text[i:i+len(name)], name) && (i == 0 || !IsToken(text[i-1:i])) &&
			strings.HasPrefix(strings.TrimLeft(text[i+len(name):], " \t"), "=") {
			return true
		}
	}
	return false
}

// noteUnclear notes why the request must not go on. The text never has what the client sent, which
// may be a secret.
func (q *request) noteUnclear(why string) {
	if q.unclear == "" {
		q.unclear = why + "; send it once, plainly written"
	}
}

// unclear says why servers may read a text in different ways, or nothing.
func unclear(text string) string {
	if text == "" {
		return ""
	}
	if text[0] == ' ' || text[len(text)-1] == ' ' {
		return "begins or ends with a space"
	}
	if !utf8.ValidString(text) || strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return "has characters that cannot be printed"
	}
	return ""
}

// hasCommas tells whether a comma is an ordinary part of a header's one value.
func hasCommas(header string) bool {
	switch header {
	case "Authorization", "Proxy-Authorization", "User-Agent", "Accept", "Accept-Encoding", "Accept-Language", "Referer", "Via", "Forwarded", "X-Forwarded-For":
		return true
	}
	return false
}

func isAuthorization(header string) bool {
	return strings.EqualFold(header, "Authorization") || strings.EqualFold(header, "Proxy-Authorization")
}

// jwtLike finds what a server that is not strict may take for a JSON Web Token.
var jwtLike = regexp.MustCompile(`e[wy][A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.`)

// authorization brings the value of such a header into one form: its scheme in lower case, a space,
// and the credentials. If the value can be read in several ways, why says how.
func authorization(value string) (text, why string) {
	if why := unclear(value); why != "" || value == "" {
		return "", why
	}
	scheme, credentials, _ := strings.Cut(value, " ")
	scheme, credentials = strings.ToLower(scheme), strings.TrimLeft(credentials, " ")
	switch {
	case scheme == "bearer":
		why = unclearToken(credentials)
	case jwtLike.MatchString(value):
		why = "has a token that is not behind Bearer and a space"
	case !IsToken(scheme) || strings.HasPrefix(scheme, "bearer"):
		why = "does not begin with a scheme and a space"
	case scheme == "basic":
		if _, err := base64.StdEncoding.Strict().DecodeString(credentials); err != nil {
			why = "has credentials that are not written in base64 as they have to be"
		}
	}
	return scheme + " " + credentials, why
}

// unclearToken says why servers may read a bearer token in different ways, or nothing. What has two
// dots or more is a JSON Web Token, signed or encrypted, or nothing that is known: its parts have
// one spelling each (base64url without padding, RFC 7515).
func unclearToken(text string) string {
	dots := strings.Count(text, ".")
	switch {
	case text == "":
		return "has no token behind Bearer"
	case len(text) > MaxTokenLength:
		return fmt.Sprintf("has a token of more than %d bytes", MaxTokenLength)
	case strings.ContainsFunc(strings.TrimRight(text, "="), notInBearer):
		return "has characters that no token has"
	case dots < 2:
		return ""
	case dots != 2 && dots != 4:
		return "has a token with too many or too few dots"
	}
	for i, part := range strings.Split(text, ".") {
		mayBeEmpty := dots == 4 && i == 1 // the key of a direct encryption
		if _, err := base64.RawURLEncoding.Strict().DecodeString(part); err != nil || part == "" && !mayBeEmpty {
			return "has a token that is not written as a JSON Web Token has to be"
		}
	}
	return ""
}

// notInBearer tells whether a letter is in no bearer token (RFC 6750, 2.1).
func notInBearer(r rune) bool {
	return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune("-_.~+/", r))
}
