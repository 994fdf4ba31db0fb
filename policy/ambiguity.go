package policy

import (
	"encoding/base64"
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/penstock/penstock/internal/syntax"
)

// Text that identifies a client must be readable in exactly one way. If it were not, rules could
// see one client, and the upstream another client. This file defines which spellings of headers,
// cookies, parameters and tokens are accepted. A request with any other spelling is malformed.

// identifyingText returns the text that identifies the client, or "" if the request has none. The
// text is that of a header, a cookie, a parameter or an entry of a descriptor. If it can be read in
// several ways, identifyingText marks the request as ambiguous.
func (q *request) identifyingText(s *Source) string {
	values := q.attributes.Lookup(s.Kind, s.Name)
	if why := explainHidden(q.attributes, s); why != "" {
		q.noteAmbiguous(s.String() + " " + why)
		return ""
	}
	if len(values) == 0 {
		return ""
	}
	if s.Kind == KindDescriptor && len(values) == 1 {
		return values[0] // a proxy made it, so it has one form
	}
	text, why := values[0], ""
	switch {
	case s.Kind == KindQuery && isAmbiguousQuery(firstValue(q.attributes, KindRawQuery)):
		why = "is in a query with a semicolon or a broken escape, which servers read in different ways"
	case len(values) > 1:
		why = fmt.Sprintf("is sent %d times", len(values))
	case s.Kind == KindHeader && isAuthorization(s.Name):
		text, why = parseAuthorization(text)
	case s.Kind == KindCookie && strings.ContainsFunc(text, endsCookie):
		why = "has white space, a comma, a quote, a backslash or a control character"
	case s.Kind == KindCookie && strings.Contains(text, "&"):
		why = "has an ampersand, which some servers read as several values"
	case s.Kind == KindCookie:
		text = cookieText(text) // some servers decode it, and must see the same client
		if why = explainAmbiguous(text); why == "" && strings.HasPrefix(text, "j:") {
			why = "begins with j:, and some servers read the rest as JSON" // cookie-parser of Express
		}
	default:
		why = explainAmbiguous(text)
	}
	mayHaveCommas := s.Kind == KindQuery || s.Kind == KindHeader && hasCommas(s.Name)
	if why == "" && !mayHaveCommas && strings.Contains(text, ",") {
		why = "has a comma, which some servers read as several values"
	}
	if why != "" {
		q.noteAmbiguous(s.String() + " " + why)
		return ""
	}
	return text
}

// explainHidden returns why some servers may find a header or a cookie that others do not find, or
// "".
func explainHidden(a Attributes, s *Source) string {
	switch s.Kind {
	case KindHeader:
		return explainDroppedHeader(a, s.Name)
	case KindCookie:
		if why := explainDroppedHeader(a, "Cookie"); why != "" {
			return why
		}
		return explainHiddenCookie(a, s.Name)
	}
	return ""
}

// explainDroppedHeader returns why the next proxy may drop a header, or "".
func explainDroppedHeader(a Attributes, name string) string {
	isSeparator := func(r rune) bool { return r >= utf8.RuneSelf || !syntax.IsToken(string(r)) }
	for _, line := range a.Lookup(KindHeader, "Connection") {
		for option := range strings.FieldsFuncSeq(line, isSeparator) {
			if strings.EqualFold(option, name) {
				return "is named in Connection, so that proxies do not send it on"
			}
		}
	}
	return ""
}

// isAmbiguousQuery reports whether servers split a query in different ways. Some servers end a
// parameter at a semicolon, and some drop a parameter with a broken escape.
func isAmbiguousQuery(query string) bool {
	if strings.Contains(query, ";") {
		return true
	}
	_, err := url.QueryUnescape(query)
	return err != nil
}

// explainHiddenCookie returns why some servers may find a cookie of this name that others do not
// find, or "". Some servers end a cookie at white space or a comma. Some let a quoted value contain
// semicolons. Some skip an equals sign before a cookie's name.
func explainHiddenCookie(a Attributes, name string) string {
	isFound, hasOpenQuote := false, false
	for pair := range strings.SplitSeq(strings.Join(a.Lookup(KindHeader, "Cookie"), ";"), ";") {
		pair = syntax.TrimName(pair)
		sentName, value, _ := strings.Cut(pair, "=")
		switch {
		case strings.EqualFold(syntax.TrimName(sentName), name):
			isFound = true
		case syntax.TrimName(sentName) == "" && (assigns(value, name) || assigns(decodeCookie(value), name)):
			return "is behind a cookie without a name, which some servers skip"
		case strings.ContainsFunc(pair, endsCookie) && (assigns(pair, name) || assigns(decodeCookie(pair), name)):
			return "is part of another cookie, as some servers read it"
		default:
			hasOpenQuote = hasOpenQuote || beginsOpenQuote(strings.TrimSpace(value))
		}
	}
	if isFound && hasOpenQuote {
		return "comes with a cookie whose quote is not closed"
	}
	return ""
}

// endsCookie reports whether some servers end a cookie at a character, or read it as an escape.
func endsCookie(r rune) bool {
	return r <= ' ' || r == ',' || r == '"' || r == '\\' || r >= 0x7f && !unicode.IsPrint(r)
}

func beginsOpenQuote(value string) bool {
	if !strings.HasPrefix(value, `"`) {
		return false
	}
	for i := 1; i < len(value); i++ {
		switch value[i] {
		case '\\':
			i++ // the escaped character
		case '"':
			return false
		}
	}
	return true
}

// assigns reports whether a text contains the whole name followed by an equals sign.
func assigns(text, name string) bool {
	for start := 0; start+len(name) < len(text); start++ {
		end := start + len(name)
		beginsName := start == 0 || !syntax.IsToken(text[start-1:start])
		if beginsName && strings.EqualFold(text[start:end], name) && strings.HasPrefix(strings.TrimLeft(text[end:], " \t"), "=") {
			return true
		}
	}
	return false
}

// noteAmbiguous records why the request is malformed: the first reason counts. The text contains
// nothing that the client sent, because that may be a secret.
func (q *request) noteAmbiguous(why string) {
	if q.ambiguous == "" {
		q.ambiguous = why + "; send it once, plainly written"
	}
}

// explainAmbiguous returns why servers may read a text in different ways, or "".
func explainAmbiguous(text string) string {
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

// jwtLike matches texts that a lenient server may read as a JSON Web Token. The base64 of a JSON
// object begins with ey, or with ew if a tab or a line break follows the brace.
var jwtLike = regexp.MustCompile(`e[wy][A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.`)

// parseAuthorization converts the value of an authorization header to one form: its scheme in lower
// case, a space, and the credentials. If the value can be read in several ways, why is the reason.
func parseAuthorization(value string) (text, why string) {
	if why := explainAmbiguous(value); why != "" || value == "" {
		return "", why
	}
	scheme, credentials, _ := strings.Cut(value, " ")
	scheme, credentials = strings.ToLower(scheme), strings.TrimLeft(credentials, " ")
	switch {
	case scheme == "bearer":
		why = explainAmbiguousToken(credentials)
	case jwtLike.MatchString(value):
		why = "has a token that does not follow Bearer and a space"
	case !syntax.IsToken(scheme) || strings.HasPrefix(scheme, "bearer"):
		why = "does not begin with a scheme and a space"
	case scheme == "basic":
		if _, err := base64.StdEncoding.Strict().DecodeString(credentials); err != nil {
			why = "has credentials that are not valid base64"
		}
	}
	return scheme + " " + credentials, why
}

// comparedText returns the form in which a value of a source is compared with listed values. In an
// authorization header, "Bearer  abc" becomes "bearer abc". In a cookie, "s%3Aabc+" becomes
// "s:abc". All other values stay.
func comparedText(s *Source, value string) string {
	switch {
	case s.Kind == KindHeader && isAuthorization(s.Name):
		if text, why := parseAuthorization(value); why == "" {
			return text
		}
	case s.Kind == KindCookie:
		return cookieText(value)
	}
	return value
}

// cookieText returns the value of a cookie that identifies a client. It decodes the value, and cuts
// off pluses at its ends: PHP reads a plus as a space, and some applications ignore such spaces.
func cookieText(value string) string {
	decoded := decodeCookie(value)
	if text := strings.Trim(decoded, "+"); text != "" {
		return text
	}
	return decoded
}

// decodeCookie returns the value of a cookie as servers that decode it read it.
func decodeCookie(value string) string {
	if decoded, err := url.PathUnescape(value); err == nil {
		return decoded
	}
	return value
}

// explainAmbiguousToken returns why servers may read a bearer token in different ways, or "". A
// token with two dots or more must be a JSON Web Token, signed or encrypted. Each part of such a
// token has exactly one spelling (base64url without padding, RFC 7515).
func explainAmbiguousToken(text string) string {
	const dotsIfSigned, dotsIfEncrypted = 2, 4 // RFC 7515 and RFC 7516
	dots := strings.Count(text, ".")
	switch {
	case text == "":
		return "has no token after Bearer"
	case len(text) > syntax.MaxToken:
		return fmt.Sprintf("has a token of more than %d bytes", syntax.MaxToken)
	case strings.ContainsFunc(strings.TrimRight(text, "="), isOutsideBearer):
		return "has characters that no token has"
	case dots < dotsIfSigned:
		return ""
	case dots != dotsIfSigned && dots != dotsIfEncrypted:
		return "has a token with too many or too few dots"
	}
	for i, part := range strings.Split(text, ".") {
		isEncryptedKey := dots == dotsIfEncrypted && i == 1 // empty with direct encryption
		_, err := base64.RawURLEncoding.Strict().DecodeString(part)
		if err != nil || part == "" && !isEncryptedKey {
			return "has a token that is not a valid JSON Web Token"
		}
	}
	return ""
}

// isOutsideBearer reports whether a bearer token cannot contain a character (RFC 6750, 2.1).
func isOutsideBearer(r rune) bool {
	return !syntax.IsAlphanumeric(r) && !strings.ContainsRune("-_.~+/", r)
}
