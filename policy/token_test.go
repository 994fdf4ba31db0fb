package policy

import (
	"net/netip"
	"net/textproto"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/syntax"
)

// fields are Attributes without an address and a body.
type fields map[Kind]map[string][]string

func (f fields) Lookup(kind Kind, name string) []string { return f[kind][name] }
func (f fields) Address() netip.Addr                    { return netip.Addr{} }
func (f fields) HasHeader(test func(string) bool) bool  { return syntax.HasHeader(f[KindHeader], test) }
func (f fields) BodySize() int64                        { return 0 }

func TestTokenOfARequestIsFoundOrAmbiguous(t *testing.T) {
	t.Parallel()
	// The constant jwt looks like a JSON Web Token, so lenient servers may find it anywhere in a
	// header. The constant token does not, so servers find it only after Bearer.
	const token, jwt = "aaaa.bbbb.cccc", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhYSJ9.c2lnbmF0dXJl"
	type lines = map[string][]string
	type cookies = map[string][]string
	cases := []struct {
		header, cookie string // of Tokens; if both are empty, the header is Authorization
		lines          lines
		cookies        cookies
		want           string // the token that Find returns; "!" if Find returns a reason instead
	}{
		{lines: lines{"Authorization": {"Bearer " + token}}, want: token},
		{lines: lines{"Authorization": {"bearer " + token}}, want: token},
		{lines: lines{"Authorization": {"BEARER   " + token}}, want: token},
		{lines: lines{"Authorization": {"Bearer opaque~token+/=="}}, want: "opaque~token+/=="},
		{lines: lines{"Authorization": {"Bearer aaaa..bbbb.cccc.dddd"}}, want: "aaaa..bbbb.cccc.dddd"}, // encrypted
		{lines: lines{"Authorization": {" \tBearer " + token + "\t"}}, want: "!"},
		{lines: lines{"Authorization": {"Bearer " + token + " "}}, want: "!"},
		{header: "authorization", lines: lines{"Authorization": {"Bearer " + token}}, want: token},
		{lines: lines{"Authorization": {"Bearer " + token, "Bearer " + token}}, want: "!"},
		{lines: lines{"Authorization": {"Bearer " + token, ""}}, want: "!"},
		{lines: lines{"Authorization": {"Bearer " + token + ", Bearer " + token}}, want: "!"},
		{lines: lines{"Authorization": {"Basic dTpw"}}},
		{lines: lines{"Authorization": {"Basic dTpx"}}},
		{lines: lines{"Authorization": {"Basic dTp"}}, want: "!"},
		{lines: lines{"Authorization": {"Digest username=\"a\", uri=\"/api.v1.x/key.abc.def\", nonce=\"e.y\""}}},
		{lines: lines{"Authorization": {"AWS4-HMAC-SHA256 Credential=a/b/s3, SignedHeaders=host;x-amz-date, Signature=00"}}},
		{lines: lines{"Authorization": {"Basic " + jwt}}, want: "!"},
		{lines: lines{"Authorization": {"JWT " + jwt}}, want: "!"},
		{lines: lines{"Authorization": {jwt}}, want: "!"},
		{lines: lines{"Authorization": {"Bearer: " + token}}, want: "!"},
		{lines: lines{"Authorization": {"Bearer"}}, want: "!"},
		{lines: lines{"Authorization": {"Bearer\t" + token}}, want: "!"},
		{lines: lines{"Authorization": {"Bearer\u00a0" + token}}, want: "!"},
		{lines: lines{"Authorization": {"Bearer " + token + "="}}, want: "!"},
		{lines: lines{"Authorization": {"Bearer " + token + "."}}, want: "!"},
		{lines: lines{"Authorization": {"Bearer aaaa.bbbb.ccccd"}}, want: "!"},
		{lines: lines{"Authorization": {"Bearer aaaa.bbbb.cd"}}, want: "!"}, // unused bits after the last byte
		{lines: lines{"Authorization": {"Bearer aaaa.bbbb."}}, want: "!"},
		{lines: lines{"Authorization": {"Bearer aa+/.bbbb.cccc"}}, want: "!"},
		{lines: lines{"Authorization": {"Bearer " + strings.Repeat("a", syntax.MaxToken+1)}}, want: "!"},
		{lines: lines{"Authorization": {""}}},
		{cookies: cookies{"session": {token}}},
		{},
		{header: "x-token", lines: lines{"X-Token": {token}}, want: token},
		{header: "X-Token", lines: lines{"X-Token": {" " + token + " "}}, want: "!"},
		{header: "X-Token", lines: lines{"X-Token": {"Bearer " + token}}, want: "!"},
		{header: "X-Token", lines: lines{"X-Token": {token}, "Authorization": {"Bearer x", "Bearer y"}}, want: token},
		{header: "X-Token", lines: lines{"X-Token": {token, token}}, want: "!"},
		{header: "X-Token", lines: lines{"Authorization": {"Bearer " + token}}},
		{cookie: "session", cookies: cookies{"session": {token}}, want: token},
		{cookie: "session", cookies: cookies{"session": {token, token}}, want: "!"},
		{cookie: "session", cookies: cookies{"session": {token, "x"}}, want: "!"},
		{cookie: "session", cookies: cookies{"session": {strings.ReplaceAll(token, ".", "%2E")}}, want: "!"},
		{cookie: "session", cookies: cookies{"session": {""}}},
		{cookie: "session", lines: lines{"Authorization": {"Bearer " + token}}},
		{header: "Authorization", cookie: "session", lines: lines{"Authorization": {"Bearer " + token}}, cookies: cookies{"session": {"other"}}, want: token},
		{header: "Authorization", cookie: "session", lines: lines{"Authorization": {"Basic dTpw"}}, cookies: cookies{"session": {token}}, want: token},
		{header: "Authorization", cookie: "session", cookies: cookies{"session": {token}}, want: token},
		{header: "Authorization", cookie: "session", lines: lines{"Authorization": {"Bearer x", "Bearer y"}}, cookies: cookies{"session": {token}}, want: "!"},
	}
	for _, c := range cases {
		tokens := Tokens{Header: textproto.CanonicalMIMEHeaderKey(c.header), Cookie: c.cookie}
		if c.header == "" && c.cookie == "" {
			tokens.Header = "Authorization"
		}
		got, ambiguous := tokens.Find(fields{KindHeader: c.lines, KindCookie: c.cookies})
		if ambiguous != "" {
			got += "!"
		}
		if got != c.want {
			t.Errorf("header %q, cookie %q: in the headers %q and the cookies %q, Find returns %q (%s); want %q", c.header, c.cookie, c.lines, c.cookies, got, ambiguous, c.want)
		}
	}
	t.Logf("counted: %d spellings of a request with a token", len(cases))
}
