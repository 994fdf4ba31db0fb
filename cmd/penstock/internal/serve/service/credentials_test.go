package service

import (
	"bufio"
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/testing/effort"
	"github.com/penstock/penstock/internal/testing/spellings"
)

// For every spelling of a credential that the upstream receives, the service recognizes the
// credential or rejects the request. The limit of each credential is used up, or its client is on
// the deny list. Each odd spelling comes from a new address with a fresh limit. So if a request
// passes, the service has not recognized the credential, and the upstream must not receive it.
func TestCredentialsAreNotIgnoredInAnySpelling(t *testing.T) {
	effort.SkipUnderRace(t)
	const secret = "a secret of thirty-two bytes or more"
	sign := func(claims string) (token string) {
		signed := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"HS256","typ":"JWT"}`)) + "." + base64.RawURLEncoding.EncodeToString([]byte(claims))
		mac := hmac.New(sha256.New, []byte(secret))
		mac.Write([]byte(signed))
		return signed + "." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
	}
	expiry := time.Now().Add(time.Hour).Unix()
	good := sign(fmt.Sprintf(`{"sub":"good","exp":%d}`, expiry))
	banned := sign(fmt.Sprintf(`{"sub":"banned","exp":%d}`, expiry))
	const policyText = `
http: {trusted_proxies: [127.0.0.1]}
tokens: {secret: "` + secret + `"}
identities:
  client:
    first_of:
      - user: claim sub
      - key: {header X-API-Key: [k-4711]}
      - session: cookie sid
      - account: query api_key
      - ip
deny: {claim sub: banned}
rules:
  - name: all
    per: client
    limits: [{rate: 1/h}]
`
	received := make(chan string, 1)
	upstream := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		dump, _ := httputil.DumpRequest(r, false)
		received <- string(dump)
	})
	flags := limitedBy(t, policyText, nil)
	r := start(t, upstream, flags)
	sent := 0
	// try sends a request from a new address. It returns the status and what the upstream received.
	try := func(target string, lines ...string) (status int, forwarded string) {
		sent++
		conn, err := net.Dial("tcp", r.Listen)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		var request bytes.Buffer
		fmt.Fprintf(&request, "GET %s HTTP/1.1\r\nHost: a\r\nConnection: close\r\nX-Forwarded-For: 198.51.%d.%d\r\n", target, sent/250, 1+sent%250)
		for _, line := range lines {
			request.WriteString(line + "\r\n")
		}
		request.WriteString("\r\n")
		conn.Write(request.Bytes())
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatalf("a request for %s with %q got no response: %v", target, lines, err)
		}
		io.Copy(io.Discard, res.Body)
		res.Body.Close()
		select {
		case forwarded = <-received:
		default:
		}
		return res.StatusCode, forwarded
	}
	// useUp uses up the limit of a credential.
	useUp := func(target string, lines ...string) {
		t.Helper()
		first, _ := try(target, lines...)
		if second, _ := try(target, lines...); first != 200 || second != 429 {
			t.Fatalf("%s with %q got %d, then %d; want 200, then 429", target, lines, first, second)
		}
	}
	useUp("/", "Authorization: Bearer "+good)
	useUp("/", "X-API-Key: k-4711")
	useUp("/", "Cookie: sid=s-4711")
	useUp("/?api_key=q-4711")
	if status, _ := try("/", "Authorization: Bearer "+banned); status != 403 {
		t.Fatalf("a client on the deny list got %d; want 403", status)
	}
	passed := 0
	// tryOdd sends an odd spelling of a credential.
	tryOdd := func(credential, target string, lines ...string) {
		status, forwarded := try(target, lines...)
		plain, _ := url.QueryUnescape(forwarded)
		if strings.Contains(forwarded, credential) || strings.Contains(plain, credential) {
			t.Errorf("%s with %q: the service ignored the credential, but the upstream received it:\n%s", target, lines, forwarded)
		}
		if status != 400 && status != 429 && status != 403 && status != 200 {
			t.Errorf("%s with %q got %d; want 200, 400, 403 or 429", target, lines, status)
		}
		if status == 200 {
			passed++
		}
	}
	for _, token := range []string{good, banned} {
		// The last letter of the signature has two unused bits. trailing has one of them set, which
		// some decoders ignore.
		const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
		last := len(token) - 1
		trailing := token[:last] + string(alphabet[strings.IndexByte(alphabet, token[last])|1])
		head, _, _ := strings.Cut(token, ".") // the first part of the token, by which a request with the token is found
		for _, value := range []string{
			"Bearer\t" + token, "Bearer  " + token, "bearer " + token, "BEARER " + token, "Bearer " + token + " ", "Bearer " + token + "\t", " Bearer " + token,
			"Bearer " + token + "=", "Bearer " + token + "==", "Bearer " + token + ".", "Bearer " + trailing, "Bearer " + token + ",", "Bearer " + token + ", Bearer " + token,
			"Bearer " + token + " x", "Bearer " + token + ";", "Bearer," + token, "Bearer:" + token, "Bearer: " + token, "Bearer=" + token, "Bearer" + token, "Bearer\"" + token + "\"",
			"Bearer \"" + token + "\"", "Bearer '" + token + "'", "JWT " + token, "Token " + token, "Basic " + token, token, "Bearer\u00a0" + token, "Bearer " + token + "\u00a0",
			"Bearer " + token + "\xa0", "Bearer " + strings.ReplaceAll(token, ".", "%2E"), "Bearer Bearer " + token, "x Bearer " + token, "Negotiate x, Bearer " + token,
		} {
			tryOdd(head, "/", "Authorization: "+value)
			tryOdd(head, "/", "Authorization: "+value, "Authorization: "+value)
			tryOdd(head, "/", "Authorization: Basic dTpw", "Authorization: "+value)
		}
		tryOdd(head, "/", "authorization: Bearer "+token, "AUTHORIZATION: Bearer x")
		tryOdd(head, "/", "Authorization:", "Authorization: Bearer "+token)
		tryOdd(head, "/", "Authorization: Bearer "+token, "Connection: Authorization")
	}
	for _, lines := range [][]string{
		{"X-API-Key: k-4711", "X-API-Key: k-4711"}, {"X-API-Key: k-4711", "X-API-Key: x"}, {"X-API-Key: x", "X-API-Key: k-4711"}, {"X-API-Key:", "X-API-Key: k-4711"},
		{"X-API-Key: k-4711,"}, {"X-API-Key: k-4711, k-4711"}, {"X-API-Key: x,k-4711"}, {"X-API-Key: k-4711\xa0"}, {"X-API-Key: \u00a0k-4711"}, {"X-API-Key: \tk-4711 \t"},
		{"x-api-key: k-4711"}, {"X_API_Key: k-4711"}, {"X-API_Key: k-4711"}, {"X-API-Key: x", "X_API-Key: k-4711"}, {"X-API-Key:k-4711"}, {"X-API-Key: k-4711\x85"},
	} {
		tryOdd("k-4711", "/", lines...)
	}
	for _, name := range spellings.Header("X-API-Key") {
		if status, forwarded := try("/", name+": k-4711"); status != 400 || forwarded != "" {
			t.Errorf("a request with %s got %d, and the upstream received %q; want 400 and nothing", name, status, forwarded)
		}
	}
	for _, lines := range [][]string{
		{"Cookie: sid=s-4711; sid=s-4711"}, {"Cookie: sid=s-4711", "Cookie: sid=x"}, {"Cookie: sid=\"s-4711\""}, {"Cookie: sid=%73-4711"}, {"Cookie: sid = s-4711"}, {"Cookie: SID=s-4711"},
		{"Cookie: sid=s-4711,"}, {"Cookie: sid=s-4711\xa0"}, {"Cookie: ;;sid=s-4711;"}, {"Cookie: sid=; sid=s-4711"},
		{"Cookie: sid= s-4711 "}, {"Cookie:sid=s%2D4711"}, {"Cookie: s%69d=s-4711"},
		{"Cookie: a=b sid=s-4711"}, {"Cookie: a=b\tsid=s-4711"}, {"Cookie: a=b,sid=s-4711"}, {"Cookie: a=b, SID = s-4711"}, {"Cookie: a=\"b\"sid=s-4711"}, {"Cookie: a=b\u00a0sid=s-4711"},
		{"Cookie: a=\"; sid=s-4711; b=\""}, {"Cookie: a=\"\\\"; sid=s-4711; b=\""}, {"Cookie: a sid=s-4711"}, {"Cookie: sid=s-4711 b=c"}, {"Cookie: sid=\"s-4711\" b"},
	} {
		tryOdd("s-4711", "/", lines...)
	}
	// Some servers unescape backslashes in a quoted cookie: they read each of these as s-4711.
	for _, value := range []string{`"\163-4711"`, `"s\-4711"`, `"s-47\061\061"`, `s\-4711`, `"s-4711\"`, `s-4711"`, `"s-4711`, `"s"-4711`} {
		if status, forwarded := try("/", "Cookie: sid="+value); status != 400 || forwarded != "" {
			t.Errorf("the cookie sid=%s got %d, and the upstream received %q; want 400 and nothing", value, status, forwarded)
		}
	}
	// A proxy removes headers that Connection names. So an upstream would see another client.
	for _, lines := range [][]string{
		{"Authorization: Bearer " + good, "Connection: authorization"}, {"Authorization: Bearer " + good, "Connection: keep-alive ,Authorization"},
		{"X-API-Key: k-4711", "Connection: X-API-Key"}, {"X-API-Key: k-4711", "Connection: close;x-api-key"}, {"X-API-Key: x", "Connection: a", "Connection:\tX-Api-Key\t"},
		{"Cookie: sid=s-4711", "Connection: Cookie"}, {"Cookie: sid=x", "Connection: x, cookie"}, {"Connection: X-API-Key"},
	} {
		if status, forwarded := try("/", lines...); status != 400 || forwarded != "" {
			t.Errorf("a request with %q got %d, and the upstream received %q; want 400 and nothing", lines, status, forwarded)
		}
	}
	if status, _ := try("/", "X-API-Key: fresh", "Connection: X-API, Key, X-Other"); status == 400 {
		t.Errorf("a Connection header that names other headers got %d; want it accepted", status)
	}
	// Servers split such a query differently. Some find no key in the query, or another key.
	for _, query := range []string{
		"api_key=q-4711;x=1", "x=1;api_key=q-4711", "api_key=fresh&x=1;y=2", "api_key=fresh&x=%zz", "x=%&api_key=fresh", "api_key=fresh%7", "api_key%3dq;=1&api_key=fresh",
		"api_key%00=q-4711", "x=1&api_key%00x=q-4711", "api_key%00[]=q-4711",
	} {
		if status, forwarded := try("/?" + query); status != 400 || forwarded != "" {
			t.Errorf("the query %s got %d, and the upstream received %q; want 400 and nothing", query, status, forwarded)
		}
	}
	for _, query := range []string{"x=1;y=2", "x=%zz", "x=api_key;"} {
		if status, _ := try("/?" + query); status != 200 {
			t.Errorf("query %s, which contains no key, got %d; want 200", query, status)
		}
	}
	if status, _ := try("/", `Cookie: theme={"dark": true, "xsid": 1}; sid=another; zone=a b, asid=c`); status != 200 {
		t.Errorf("cookies without a credential got %d; want 200", status)
	}
	for _, query := range []string{
		"api_key=q-4711&api_key=q-4711", "api_key=q-4711&api_key=x", "api_key=&api_key=q-4711", "api%5Fkey=q-4711", "API_KEY=q-4711", "api_key[]=q-4711", "api_key[0]=q-4711",
		"api_key=q-4711;x", "x;api_key=q-4711", "api_key=%71-4711", "api_key=q-4711%20", "api_key=+q-4711", "api_key=q-4711%00", "api_key=q-4711&%zz", "&&api_key=q-4711", "%61pi_key=q-4711",
		"x=1;api_key=q-4711", "api_key=q-4711&api_key", "api_key=q-4711&Api_Key=x", "api_key=q-4711%0a", "api_key%20=q-4711",
		"api.key=q-4711", "api%20key=q-4711", "api+key=q-4711", "API%2ekey=q-4711",
	} {
		tryOdd("q-4711", "/?"+query)
	}
	t.Logf("counted: %d requests, of which %d passed without their credential", sent, passed)
}
