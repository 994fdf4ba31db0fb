package jwt

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/syntax"
	"github.com/penstock/penstock/internal/testing/effort"
	"github.com/penstock/penstock/internal/testing/jwttest"
	"github.com/penstock/penstock/policy"
)

// tokenNow is the time of all tests of tokens.
var tokenNow = time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)

// validClaims are claims that a token needs to be accepted at tokenNow. The text is a part of a
// JSON object.
var validClaims = fmt.Sprintf(`"iss":"https://issuer.example/","aud":["rides","food"],"exp":%d,"nbf":%[2]d,"iat":%[2]d`,
	tokenNow.Add(time.Hour).Unix(), tokenNow.Add(-time.Minute).Unix())

// A testIssuer signs tokens, and has a Verifier that accepts them.
type testIssuer struct {
	alg        string
	privateKey any
	verifier   *Verifier
}

// newIssuer returns an issuer. change may change the Config of its Verifier.
func newIssuer(t testing.TB, alg string, change func(*Config)) testIssuer {
	t.Helper()
	dir := t.TempDir()
	pair := jwttest.Pairs()[alg]
	tokens := Config{Algorithms: []string{alg}, Issuer: "https://issuer.example/", Audience: "rides"}
	if secret, ok := pair[0].([]byte); ok {
		tokens.Secret = string(secret)
	} else {
		tokens.KeyFile = "public.pem"
		write(t, filepath.Join(dir, "public.pem"), jwttest.PublicPEM(pair[0]))
	}
	if change != nil {
		change(&tokens)
	}
	v, err := New(tokens, dir)
	if err != nil {
		t.Fatal(err)
	}
	v.now = func() time.Time { return tokenNow }
	return testIssuer{alg, pair[0], v}
}

// token returns a token of the issuer. The text more has further members of its header: it is empty
// or begins with a comma.
func (i testIssuer) token(more, payload string) string {
	return jwttest.Sign(i.alg, i.privateKey, `{"alg":"`+i.alg+`","typ":"JWT"`+more+`}`, payload)
}

// certificate returns an expired certificate.
func certificate(private any) []byte {
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"},
		NotBefore: tokenNow.AddDate(-2, 0, 0), NotAfter: tokenNow.AddDate(-1, 0, 0)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, jwttest.PublicOf(private), private)
	if err != nil {
		panic(err)
	}
	return der
}

// headerFields are the Attributes of a request that has only header fields.
type headerFields map[string][]string

func (f headerFields) Lookup(kind policy.Kind, name string) []string {
	if kind == policy.KindHeader {
		return f[name]
	}
	return nil
}
func (f headerFields) Address() netip.Addr              { return netip.Addr{} }
func (f headerFields) HasHeader(func(string) bool) bool { return false }
func (f headerFields) BodySize() int64                  { return 0 }

func write(t testing.TB, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestEveryAlgorithmIsAccepted(t *testing.T) {
	t.Parallel()
	counted := 0
	for alg := range jwttest.Pairs() {
		issuer := newIssuer(t, alg, nil)
		for range 2 { // verified, then cached
			c, err := issuer.verifier.Claims(issuer.token("", `{"sub":"victim",`+validClaims+`}`))
			if sub, ok := c.Text("sub"); err != nil || !ok || sub != "victim" {
				t.Errorf("%s: the sub is %q with the error %v; want \"victim\" and no error", alg, sub, err)
			}
			counted++
		}
	}
	t.Logf("counted: %d genuine tokens accepted", counted)
}

func TestKeysDefaultToTheirOwnAlgorithm(t *testing.T) {
	t.Parallel()
	for alg := range jwttest.Pairs() {
		issuer := newIssuer(t, alg, func(tokens *Config) { tokens.Algorithms = nil })
		_, err := issuer.verifier.Claims(issuer.token("", `{"sub":"victim",`+validClaims+`}`))
		isElliptic := alg[0] == 'E' // ES256, ES384, ES512 and EdDSA
		isDefault := isElliptic || alg == "RS256" || alg == "HS256"
		if (err == nil) != isDefault {
			t.Errorf("%s: the error is %v; want the token to be accepted: %t", alg, err, isDefault)
		}
	}
}

func TestKeysOfASetAreUsedForTheirAlgorithm(t *testing.T) {
	t.Parallel()
	pairs := jwttest.Pairs()
	v := fromSet(t, Config{}, jwttest.JWKS(
		jwttest.JWK(pairs["RS256"][0], `,"kid":"a","alg":"PS512","use":"sig"`),
		jwttest.JWK(pairs["EdDSA"][0], `,"kid":"b","alg":"Ed25519"`),
		jwttest.JWK(pairs["ES384"][0], `,"kid":"c","key_ops":["verify"]`),
		jwttest.JWK(pairs["ES256"][0], `,"kid":"d","use":"enc"`),
		jwttest.JWK(pairs["ES512"][0], `,"kid":"e","key_ops":["sign"]`),
		jwttest.JWK(pairs["RS256"][1], `,"kid":"f","alg":"RSA-OAEP"`),
		`{"kty":"OKP","crv":"X25519","x":"AAAA","kid":"g"}`, `{"kty":"new"}`))
	for _, c := range []struct {
		alg, kid   string // of the token; "" leaves the kid out
		pairIndex  int    // in jwttest.Pairs()[alg]
		isAccepted bool
	}{
		{alg: "PS512", kid: "a", isAccepted: true},
		{alg: "EdDSA", kid: "b", isAccepted: true},
		{alg: "ES384", kid: "c", isAccepted: true},
		{alg: "ES384", kid: "", isAccepted: true},
		{alg: "RS256", kid: "a"},
		{alg: "PS256", kid: "a"},
		{alg: "PS512", kid: "a", pairIndex: 1},
		{alg: "PS512", kid: "b"},
		{alg: "ES256", kid: "d"},
		{alg: "ES512", kid: "e"},
		{alg: "RS256", kid: "f", pairIndex: 1},
		{alg: "ES384", kid: "C"},
	} {
		header := `{"alg":"` + c.alg + `"}`
		if c.kid != "" {
			header = `{"alg":"` + c.alg + `","kid":"` + c.kid + `"}`
		}
		_, err := v.Claims(jwttest.Sign(c.alg, pairs[c.alg][c.pairIndex], header, `{"sub":"x",`+validClaims+`}`))
		if (err == nil) != c.isAccepted {
			t.Errorf("%+v: the error is %v; want no error if isAccepted, and otherwise an error", c, err)
		}
	}
}

func TestKeyOfASetIsUsedForNoOtherAlgorithm(t *testing.T) {
	t.Parallel()
	key := jwttest.Pairs()["RS256"][0]
	v := fromSet(t, Config{Algorithms: []string{"PS512", "RS256"}}, jwttest.JWKS(jwttest.JWK(key, `,"alg":"PS512"`), jwttest.JWK(jwttest.Pairs()["RS256"][1], "")))
	for alg, want := range map[string]bool{"PS512": true, "RS256": false} {
		if _, err := v.Claims(jwttest.Sign(alg, key, `{"alg":"`+alg+`"}`, `{`+validClaims+`}`)); (err == nil) != want {
			t.Errorf("%s: the error is %v; want only PS512 accepted", alg, err)
		}
	}
}

// fromSet returns a Verifier with the keys of a JWKS in a file.
func fromSet(t testing.TB, tokens Config, set string) *Verifier {
	t.Helper()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "keys.json"), set)
	tokens.JWKSFile = filepath.Join(dir, "keys.json")
	v, err := New(tokens, "/nowhere")
	if err != nil {
		t.Fatal(err)
	}
	v.now = func() time.Time { return tokenNow }
	return v
}

func TestSeveralKeysOfAFile(t *testing.T) {
	t.Parallel()
	dir, pairs := t.TempDir(), jwttest.Pairs()
	pkcs1 := pem.EncodeToMemory(&pem.Block{Type: "RSA PUBLIC KEY",
		Bytes: x509.MarshalPKCS1PublicKey(jwttest.PublicOf(pairs["RS256"][1]).(*rsa.PublicKey))})
	expired := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate(pairs["EdDSA"][0])})
	write(t, filepath.Join(dir, "k.pem"), "Of last year:\n"+jwttest.PublicPEM(pairs["RS256"][0])+string(pkcs1)+"\n"+string(expired)+jwttest.PublicPEM(pairs["ES256"][1]))
	v, err := New(Config{KeyFile: "k.pem"}, dir)
	if err != nil {
		t.Fatal(err)
	}
	v.now = func() time.Time { return tokenNow }
	for _, c := range []struct {
		alg       string
		pairIndex int // in jwttest.Pairs()[alg]
	}{{"RS256", 0}, {"RS256", 1}, {"EdDSA", 0}, {"ES256", 1}} {
		token := jwttest.Sign(c.alg, pairs[c.alg][c.pairIndex], `{"alg":"`+c.alg+`","kid":"any"}`, `{"sub":"x",`+validClaims+`}`)
		if _, err := v.Claims(token); err != nil {
			t.Errorf("a token of %+v has the error %v; want it to be accepted", c, err)
		}
	}
	if files := (Config{KeyFile: "k.pem", JWKSFile: "/etc/jwks.json"}).Files(dir); !slices.Equal(files, []string{dir + "/k.pem", "/etc/jwks.json"}) {
		t.Errorf("the files are %q; want k.pem in the folder, and /etc/jwks.json", files)
	}
}

// forgeries returns tokens that name the victim and must be rejected, by their defect.
func (i testIssuer) forgeries() map[string]string {
	pairs := jwttest.Pairs()
	other := pairs[i.alg][1]
	victim := `{"sub":"victim",` + validClaims + `}`
	genuine := i.token("", victim)
	part := strings.Split(genuine, ".")
	signature, err := base64.RawURLEncoding.DecodeString(part[2])
	if err != nil {
		panic(err)
	}
	withSignature := func(signature []byte) string {
		return part[0] + "." + part[1] + "." + jwttest.Base64(string(signature))
	}
	flipBit := func(at int) []byte {
		changed := slices.Clone(signature)
		changed[at] ^= 1
		return changed
	}
	attackerPart := strings.Split(i.token("", `{"sub":"attacker",`+validClaims+`}`), ".")
	header := `{"alg":"` + i.alg + `","typ":"JWT"}`

	forged := map[string]string{
		"signed by another key":          jwttest.Sign(i.alg, other, header, victim),
		"signature left out":             part[0] + "." + part[1] + ".",
		"two parts":                      part[0] + "." + part[1],
		"one part":                       part[0],
		"payload alone":                  part[1],
		"four parts":                     genuine + "." + part[2],
		"five parts":                     genuine + "." + part[1] + "." + part[2],
		"trailing dot":                   genuine + ".",
		"leading dot":                    "." + genuine,
		"empty":                          "",
		"dots":                           "..",
		"payload changed":                attackerPart[0] + "." + part[1] + "." + attackerPart[2],
		"header changed":                 jwttest.Base64(`{"typ":"JWT","alg":"`+i.alg+`"}`) + "." + part[1] + "." + part[2],
		"signature of the header":        part[0] + "." + part[1] + "." + part[0],
		"signature a byte short":         withSignature(signature[:len(signature)-1]),
		"signature a byte long":          withSignature(append(slices.Clone(signature), 0)),
		"signature with a byte in front": withSignature(append([]byte{0}, signature...)),
		"first byte changed":             withSignature(flipBit(0)),
		"last byte changed":              withSignature(flipBit(len(signature) - 1)),
		"signature of zeros":             withSignature(make([]byte, len(signature))),
		"signature of ones":              withSignature([]byte(strings.Repeat("\xff", len(signature)))),
		"signature 0, 1":                 withSignature(append(make([]byte, len(signature)-1), 1)),
		"signature twice":                withSignature(append(slices.Clone(signature), signature...)),
		"parts swapped":                  part[1] + "." + part[0] + "." + part[2],
		"truncated by a letter":          genuine[:len(genuine)-1],
		"truncated by half":              genuine[:len(genuine)/2],
		"padded signature":               genuine + "=",
		"padded twice":                   genuine + "==",
		"padded payload":                 part[0] + "." + part[1] + "=." + part[2],
		"padded header":                  part[0] + "==." + part[1] + "." + part[2],
		"space in front":                 " " + genuine,
		"space behind":                   genuine + " ",
		"line end behind":                genuine + "\n",
		"line end in the signature":      part[0] + "." + part[1] + "." + part[2][:4] + "\r\n" + part[2][4:],
		"tab in the signature":           part[0] + "." + part[1] + "." + part[2][:4] + "\t" + part[2][4:],
		"NUL behind":                     genuine + "\x00",
		"quoted":                         `"` + genuine + `"`,
		"with its scheme":                "Bearer " + genuine,
		"two with a comma":               genuine + "," + genuine,
		"percent-encoded":                strings.ReplaceAll(genuine, ".", "%2E"),
		"full-width dots":                strings.ReplaceAll(genuine, ".", "．"),
		"standard base64":                part[0] + "." + part[1] + "." + base64.StdEncoding.EncodeToString(signature),
		"as JSON":                        `{"payload":"` + part[1] + `","protected":"` + part[0] + `","signature":"` + part[2] + `"}`,
		"header not base64":              "!!!!." + part[1] + "." + part[2],
		"payload not base64":             part[0] + ".!!!!." + part[2],
		"huge":                           i.token("", `{"sub":"victim","x":"`+strings.Repeat("x", syntax.MaxToken)+`",`+validClaims+`}`),
		"huge header":                    i.token(`,"x":"`+strings.Repeat("x", syntax.MaxToken)+`"`, victim),
		"huge kid":                       i.token(`,"kid":"`+strings.Repeat("x", syntax.MaxToken)+`"`, victim),
		"JWE":                            jwttest.Base64(`{"alg":"dir","enc":"A256GCM"}`) + ".." + part[1] + "." + part[2] + "." + part[2],
		"alg written in other letters":   jwttest.Sign(i.alg, i.privateKey, `{"alg":"`+strings.ToLower(i.alg)+`"}`, victim),
		"alg with a space":               jwttest.Sign(i.alg, i.privateKey, `{"alg":"`+i.alg+` "}`, victim),
		"alg under another name":         jwttest.Sign(i.alg, i.privateKey, `{"Alg":"`+i.alg+`"}`, victim),
		"token in a token":               i.token(`,"cty":"JWT"`, `"`+genuine+`"`),
		"another key and its jwk":        jwttest.Sign(i.alg, other, `{"alg":"`+i.alg+`","jwk":`+publicJWK(other)+`}`, victim),
		"another key and its jku":        jwttest.Sign(i.alg, other, `{"alg":"`+i.alg+`","jku":"http://127.0.0.1:1/jwks.json"}`, victim),
		"another key and its x5u":        jwttest.Sign(i.alg, other, `{"alg":"`+i.alg+`","x5u":"http://127.0.0.1:1/x.pem"}`, victim),
		"another key and its x5c":        jwttest.Sign(i.alg, other, `{"alg":"`+i.alg+`","x5c":["`+publicX5C(other)+`"]}`, victim),
		"another key, x5c named as kid":  jwttest.Sign(i.alg, other, `{"alg":"`+i.alg+`","kid":"x5c","x5c":["`+publicX5C(other)+`"]}`, victim),
		"another key, b64 false":         jwttest.Sign(i.alg, other, `{"alg":"`+i.alg+`","b64":false}`, victim),
		"own key, crit b64":              i.token(`,"b64":false,"crit":["b64"]`, victim),
		"own key, crit empty":            i.token(`,"crit":[]`, victim),
		"own key, crit null":             i.token(`,"crit":null`, victim),
		"own key, kid a number":          i.token(`,"kid":1`, victim),
		"own key, kid null":              i.token(`,"kid":null`, victim),
		"own key, kid a list":            i.token(`,"kid":["a"]`, victim),
		"own key, kid an object":         i.token(`,"kid":{"a":1}`, victim),
		"another key, key file as kid":   jwttest.Sign(i.alg, other, `{"alg":"`+i.alg+`","kid":"public.pem"}`, victim),
		"sub twice, the victim first":    i.token("", `{"sub":"victim","sub":"attacker",`+validClaims+`}`),
		"sub twice, the victim last":     i.token("", `{"sub":"attacker","sub":"victim",`+validClaims+`}`),
		"sub twice, once escaped":        i.token("", `{"sub":"attacker","\u0073ub":"victim",`+validClaims+`}`),
		"nested name twice":              i.token("", `{"sub":"victim","a":[{"b":{"c":1,"c":2}}],`+validClaims+`}`),
		"names that decode equally":      i.token("", `{"sub":"victim","\ud800":1,"\ud801":2,`+validClaims+`}`),
		"exp twice":                      i.token("", `{"sub":"victim","exp":1,`+validClaims+`}`),
		"33 levels deep":                 i.token("", `{"sub":"victim","a":`+strings.Repeat("[", 32)+strings.Repeat("]", 32)+`,`+validClaims+`}`),
		"1,000 levels deep":              i.token("", `{"sub":"victim","a":`+strings.Repeat(`{"a":`, 500)+"1"+strings.Repeat("}", 500)+`,`+validClaims+`}`),
		"2,500 lists deep":               i.token("", strings.Repeat("[", 2500)+strings.Repeat("]", 2500)),
		"3,000 lists that never close":   i.token("", strings.Repeat("[", 3000)),
		"deep header":                    i.token(`,"kid":`+strings.Repeat("[", 2500)+strings.Repeat("]", 2500), victim),
	}
	for _, secret := range i.publicTexts() {
		for _, alg := range secretAlgorithms {
			forged[fmt.Sprintf("%s with public text %.30q (%d bytes)", alg, secret, len(secret))] =
				jwttest.Sign(alg, []byte(secret), `{"alg":"`+alg+`","typ":"JWT"}`, victim)
		}
	}
	for _, alg := range []string{`"none"`, `"None"`, `"NONE"`, `"nOnE"`, `"none "`, `" none"`, `"\u006eone"`, `""`, `null`, `0`, `["none"]`,
		`{}`, `false`, `"none\u0000"`, `"XX256"`, `"dir"`} {
		unsigned := jwttest.Base64(`{"alg":`+alg+`}`) + "." + part[1] + "."
		forged["alg "+alg] = unsigned
		forged["alg "+alg+" and a signature"] = unsigned + part[2]
	}
	forged["alg twice, none last"] = jwttest.Base64(`{"alg":"`+i.alg+`","alg":"none"}`) + "." + part[1] + "."
	forged["alg twice, none first"] = jwttest.Base64(`{"alg":"none","alg":"`+i.alg+`"}`) + "." + part[1] + "."
	forged["no alg"] = jwttest.Base64(`{}`) + "." + part[1] + "."
	for _, badHeader := range []string{``, `null`, `[]`, `"alg"`, `{`, `{"alg":"` + i.alg + `"`, `{"alg":"` + i.alg + `"}x`, "\ufeff" + header} {
		forged["header "+badHeader] = jwttest.Sign(i.alg, i.privateKey, badHeader, victim)
	}
	for alg, pair := range pairs { // the attacker's own keys of every kind, and the issuer's key with an algorithm that is not configured
		if alg != i.alg {
			forged["attacker's "+alg] = jwttest.Sign(alg, pair[1], `{"alg":"`+alg+`"}`, victim)
			forged["unwanted "+alg] = jwttest.Sign(alg, pair[0], `{"alg":"`+alg+`"}`, victim)
			forged["attacker's "+alg+" called "+i.alg] = jwttest.Sign(alg, pair[1], header, victim)
		}
	}
	for _, kid := range []string{"../../../../../../dev/null", "/dev/null", "public.pem", "keys/public.pem", "file:///dev/null",
		"http://127.0.0.1:1/", "' UNION SELECT 'x' -- ", "|/bin/true", "\u0000", "\r\nX-Y: z", "{{7*7}}", "constructor", "0", "%2e%2e%2f"} {
		quoted, _ := json.Marshal(kid)
		forged["kid "+kid+", another key"] = jwttest.Sign(i.alg, other, `{"alg":"`+i.alg+`","kid":`+string(quoted)+`}`, victim)
		forged["kid "+kid+", no secret"] = jwttest.Sign("HS256", []byte{}, `{"alg":"HS256","kid":`+string(quoted)+`}`, victim)
	}
	for _, payload := range []string{``, `null`, `[]`, `"victim"`, `1`, `{`, `{"sub":"victim"`, victim + victim, victim + "x", "\ufeff" + victim, `{"sub":"victim",}`, `{sub:"victim"}`,
		"{\"sub\":\"victim\n\"," + validClaims + "}"} {
		forged["payload "+payload] = i.token("", payload)
	}
	at := func(after time.Duration) string { return fmt.Sprint(tokenNow.Add(after).Unix()) }
	for _, c := range []struct {
		claim  string
		values []string // as JSON; "" leaves the claim out
	}{
		{"exp", []string{"", "null", "0", "-1", "1.5", "1e300", "1e400", "-1e300", `"4102444800"`, "true", "[4102444800]", "{}", "253402300800",
			at(-time.Hour), at(-30 * time.Second), at(-31 * time.Second), "9223372036854775807", "18446744073709551616"}},
		{"nbf", []string{"null", `"0"`, "1e300", "-1", "true", "[]", at(31 * time.Second), at(time.Hour), "9223372036854775808"}},
		{"iat", []string{"null", `"0"`, "1e300", "-1", "{}", at(31 * time.Second), at(time.Hour)}},
		{"iss", []string{"", "null", `""`, `"https://issuer.example"`, `"https://ISSUER.example/"`, `"https://issuer.example/x"`, `"https://evil.example/"`,
			`["https://issuer.example/"]`, `{"a":"https://issuer.example/"}`, "1", "true", `" https://issuer.example/"`, `"https://issuer.example/\u0000"`}},
		{"aud", []string{"", "null", `""`, `"ride"`, `"rides2"`, `"RIDES"`, "[]", `[""]`, `["food"]`, `[["rides"]]`, `["rides",1]`, `{"rides":true}`, "1", "true", `"rides food"`, `"rides,food"`}},
		{"sub", []string{"null", `""`, "1.5", "1e3", "-0", "true", `["victim"]`, `{"sub":"victim"}`, `"victim\ud800"`, `"victim\ufffd"`, "\"victim\xff\""}},
	} {
		for _, value := range c.values {
			set := map[string]json.RawMessage{}
			if err := json.Unmarshal([]byte(victim), &set); err != nil {
				panic(err)
			}
			delete(set, c.claim)
			rest, err := json.Marshal(set)
			if err != nil {
				panic(err)
			}
			if value != "" {
				rest = fmt.Appendf(rest[:len(rest)-1], ",%q:%s}", c.claim, value)
			}
			forged[fmt.Sprintf("own key, %s is %q", c.claim, value)] = i.token("", string(rest))
		}
	}
	if key, ok := i.privateKey.(*ecdsa.PrivateKey); ok {
		hash := sha256.Sum256([]byte(part[0] + "." + part[1]))
		der, err := ecdsa.SignASN1(rand.Reader, key, hash[:])
		if err != nil {
			panic(err)
		}
		forged["signature in ASN.1"] = withSignature(der)
	}
	for defect, token := range forged {
		if token == genuine { // standard base64 is the same as base64url if the signature has no + and no /
			delete(forged, defect)
		}
	}
	return forged
}

// publicTexts returns forms of the public key that a program could mistake for a secret.
func (i testIssuer) publicTexts() []string {
	if _, ok := i.privateKey.([]byte); ok {
		return []string{"", "secret", "public.pem", i.alg, jwttest.Secret[:32], jwttest.Secret + "\n"}
	}
	text := jwttest.PublicPEM(i.privateKey)
	block, _ := pem.Decode([]byte(text))
	texts := []string{"", text, strings.TrimSpace(text), strings.ReplaceAll(text, "\n", "\r\n"), strings.ReplaceAll(text, "\n", ""), string(block.Bytes),
		base64.StdEncoding.EncodeToString(block.Bytes), publicJWK(i.privateKey), jwttest.JWKS(publicJWK(i.privateKey)), string(certificate(i.privateKey)),
		string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate(i.privateKey)}))}
	if key, ok := jwttest.PublicOf(i.privateKey).(*rsa.PublicKey); ok {
		texts = append(texts, string(key.N.Bytes()), string(x509.MarshalPKCS1PublicKey(key)),
			string(pem.EncodeToMemory(&pem.Block{Type: "RSA PUBLIC KEY", Bytes: x509.MarshalPKCS1PublicKey(key)})))
	}
	return texts
}

// publicJWK returns the public part of a key as an entry of a JWKS, or the whole key if it is a
// secret.
func publicJWK(key any) string {
	if secret, ok := key.([]byte); ok {
		return `{"kty":"oct","k":"` + jwttest.Base64(string(secret)) + `"}`
	}
	return jwttest.JWK(key, "")
}

// publicX5C returns a certificate of a key as it is written in x5c, or "" for a secret.
func publicX5C(key any) string {
	if _, ok := key.([]byte); ok {
		return ""
	}
	return base64.StdEncoding.EncodeToString(certificate(key))
}

func TestForgedTokensAreNeverAccepted(t *testing.T) {
	effort.SkipUnderRace(t)
	t.Parallel()
	tried := 0
	defects := make(map[string]bool)
	for _, alg := range []string{"HS256", "HS512", "RS256", "PS256", "ES256", "ES512", "EdDSA"} {
		files := newIssuer(t, alg, nil)
		issuers := []testIssuer{files}
		if isPublicAlgorithm(alg) { // the same key in a JWKS, with a kid
			set := jwttest.JWKS(jwttest.JWK(files.privateKey, `,"kid":"k1","use":"sig"`))
			v := fromSet(t, Config{Algorithms: []string{alg}, Issuer: "https://issuer.example/", Audience: "rides"}, set)
			issuers = append(issuers, testIssuer{alg, files.privateKey, v})
		}
		forged := files.forgeries()
		for _, issuer := range issuers {
			for round := range 2 { // in the second round, the Verifier has a genuine token in its cache
				for defect, token := range forged {
					defects[strings.ReplaceAll(defect, alg, "ALG")] = true
					c, err := issuer.verifier.Claims(token)
					if sub, ok := c.Text("sub"); err == nil || ok || c != nil {
						t.Errorf("%s: %s: accepted as %q; want it rejected\n%.300s", alg, defect, sub, token)
					}
					tried++
				}
				if round == 0 {
					genuine := issuer.token("", `{"sub":"victim",`+validClaims+`}`)
					if c, err := issuer.verifier.Claims(genuine); err != nil || c["sub"] != "victim" {
						t.Errorf("%s: a genuine token has the claims %v, %v; want those of the victim", alg, c, err)
					}
				}
			}
		}
	}
	t.Logf("counted: %d forged tokens refused (of %d defects)", tried, len(defects))
	if len(defects) < 200 {
		t.Errorf("there are %d defects of forged tokens; want at least 200", len(defects))
	}
}

// The last character of a signature in base64 has unused bits, which Go's decoder ignores. So a
// signature would have up to 16 forms.
func TestSignatureHasOneForm(t *testing.T) {
	t.Parallel()
	for _, alg := range []string{"HS256", "RS256", "ES256", "EdDSA"} {
		issuer := newIssuer(t, alg, nil)
		genuine := issuer.token("", `{"sub":"victim",`+validClaims+`}`)
		spelled := 0
		for _, last := range "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_" {
			if _, err := issuer.verifier.Claims(genuine[:len(genuine)-1] + string(last)); err == nil {
				spelled++
			}
		}
		if spelled != 1 {
			t.Errorf("%s: a signature has %d accepted forms; want 1", alg, spelled)
		}
	}
}

func TestTimesAreCheckedWithLeeway(t *testing.T) {
	t.Parallel()
	issuer := newIssuer(t, "HS256", func(tokens *Config) { tokens.Leeway = time.Minute })
	token := issuer.token("", fmt.Sprintf(`{"iss":"https://issuer.example/","aud":"rides","exp":%d,"nbf":%d}`,
		tokenNow.Add(time.Hour).Unix(), tokenNow.Unix()))
	for _, c := range []struct {
		at         time.Duration
		isAccepted bool
	}{
		{-time.Minute - time.Second, false}, {-time.Minute, true}, {0, true}, {time.Hour + time.Minute - time.Second, true},
		{time.Hour + time.Minute, false}, // expired while in the cache
		{time.Hour, true}, {-time.Hour, false},
	} {
		issuer.verifier.now = func() time.Time { return tokenNow.Add(c.at) }
		if _, err := issuer.verifier.Claims(token); (err == nil) != c.isAccepted {
			t.Errorf("at %v after tokenNow: the error is %v; want the token to be accepted: %t", c.at, err, c.isAccepted)
		}
	}
}

func TestIssuerAndAudienceCountOnlyIfConfigured(t *testing.T) {
	t.Parallel()
	issuer := newIssuer(t, "HS256", func(tokens *Config) { tokens.Issuer, tokens.Audience = "", "" })
	if _, err := issuer.verifier.Claims(issuer.token("", fmt.Sprintf(`{"sub":"x","aud":"other","iss":"y","exp":%d}`, tokenNow.Unix()+60))); err != nil {
		t.Errorf("a token with any iss and aud: %v; want it accepted", err)
	}
	for _, c := range []struct {
		tokens Config
		fields []string
	}{
		{Config{KeyFile: "x"}, []string{"tokens.audience:", "tokens.issuer:"}},
		{Config{Secret: "x"}, []string{"tokens.audience:"}},
		{Config{KeyFile: "x", Issuer: "x"}, []string{"tokens.audience:"}},
		{Config{KeyFile: "x", Issuer: "x", Audience: "x"}, nil},
	} {
		got := c.tokens.Warnings()
		if !slices.EqualFunc(got, c.fields, strings.HasPrefix) {
			t.Errorf("%+v: the warnings are %q; want warnings that begin with %q", c.tokens, got, c.fields)
		}
	}
}

func TestClaimsAsText(t *testing.T) {
	t.Parallel()
	issuer := newIssuer(t, "HS256", nil)
	c, err := issuer.verifier.Claims(issuer.token("", `{"sub":"u1","n":42,"big":9007199254740993,"neg":-7,"f":1.5,"e":1e3,"zero":-0,"yes":true,"no":false,"null":null,
		"empty":"","broken":"a\ud800","roles":["admin","", 7,null,[1],{"a":1},true],"realm":{"role":"user","roles":["x","y"],"a.b":{"c":"deep"},"null":null},
		"realm.role":"exact","https://x.example/plan":"gold","https://x.example/meta":{"plan":"silver"},"none.deep":[1],"none":{"deep":"hidden"},
		"scope":"read  write\tx","scp":["a b"],"word":"two words",`+validClaims+`}`))
	if err != nil {
		t.Fatal(err)
	}
	texts := map[string]string{"sub": "u1", "n": "42", "big": "9007199254740993", "neg": "-7", "f": "", "e": "", "zero": "", "yes": "true", "no": "false",
		"null": "", "empty": "", "broken": "", "roles": "", "realm": "", "realm.role": "exact", "realm.roles": "", "realm.a.b.c": "deep", "realm.null": "", "realm.null.x": "",
		"https://x.example/plan": "gold", "https://x.example/meta.plan": "silver", "none.deep": "", "absent": "", "": "", ".": "", "sub.x": "", "..": "", "Sub": ""}
	for name, want := range texts {
		if got, ok := c.Text(name); got != want || ok != (want != "") {
			t.Errorf("Text(%q) = %q, %v; want %q", name, got, ok, want)
		}
	}
	lists := map[string]string{"sub": "u1", "n": "42", "roles": "admin|7|true", "realm.roles": "x|y", "scope": "read|write|x", "scp": "a b", "word": "two words",
		"aud": "rides|food", "realm": "", "absent": "", "null": "", "empty": "", "none.deep": "1"}
	for name, want := range lists {
		if got := c.Values(name); strings.Join(got, "|") != want {
			t.Errorf("Values(%q) = %q; want %q", name, got, want)
		}
	}
	t.Logf("counted: %d claims by name", len(texts)+len(lists))
}

// Proxies may change the spacing and case of a header. The result must be the same token, or the
// request must be malformed.
func TestSpellingsOfOneTokenAreEqualOrMalformed(t *testing.T) {
	t.Parallel()
	issuer := newIssuer(t, "RS256", nil)
	token := issuer.token("", `{"sub":"victim",`+validClaims+`}`)
	tried := 0
	for _, before := range []string{"", " ", "\t", "Bearer ", "bearer ", "BeArEr  ", "Bearer\t", "Bearer,", "Bearer Bearer ", "Bearer =", "Bearer \"", "Bearer\u00a0", "Bearer: ", "JWT ", "Bearer %20"} {
		for _, after := range []string{"", " ", "\t", "=", "==", ".", ",", ", Bearer x", "\"", "\r\n", "\n", "\x00", ";", "%00", "\u00a0", "AAA="} {
			for _, lines := range [][]string{{before + token + after}, {before + token + after, "x"}, {"x", before + token + after}} {
				tried++
				found, unclear := issuer.verifier.tokens.Find(headerFields{"Authorization": lines})
				if unclear != "" {
					continue
				}
				if c, err := issuer.verifier.Claims(found); err != nil || c["sub"] != "victim" || len(lines) > 1 {
					t.Errorf("%q is read as %q with the sub %v, %v; want the victim's token, or a malformed request", lines, found, c["sub"], err)
				}
			}
		}
	}
	t.Logf("counted: %d spellings of one token", tried)
}

func TestAllMistakesAreReportedTogether(t *testing.T) {
	t.Parallel()
	dir, pairs := t.TempDir(), jwttest.Pairs()
	weak, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	p224, err := ecdsa.GenerateKey(elliptic.P224(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(pairs["ES256"][0])
	if err != nil {
		t.Fatal(err)
	}
	good := jwttest.PublicPEM(pairs["RS256"][0])
	goodJWK := jwttest.JWK(pairs["ES256"][0], "")
	for name, text := range map[string]string{
		"good.pem": good, "weak.pem": jwttest.PublicPEM(weak), "p224.pem": jwttest.PublicPEM(p224), "empty.pem": "", "text.pem": "hello",
		"damaged.pem": good[:100] + "!!!" + good[100:], "cut.pem": good + good[:200], "many.pem": strings.Repeat(good, MaxKeys+1),
		"private.pem": string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})),
		"request.pem": string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: []byte("x")})),
		"broken.pem":  string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: []byte("x")})),
		"big.pem":     strings.Repeat(" ", maxKeyBytes+1),
		"good.json":   jwttest.JWKS(goodJWK), "none.json": jwttest.JWKS(), "enc.json": jwttest.JWKS(jwttest.JWK(pairs["ES256"][0], `,"use":"enc"`)),
		"text.json": "hello", "other.json": `{"a":1}`, "list.json": `[]`, "many.json": jwttest.JWKS(strings.Split(strings.Repeat(goodJWK+"\n", MaxKeys+1), "\n")[:MaxKeys+1]...),
		"oct.json": jwttest.JWKS(`{"kty":"oct","k":"AAAA","kid":"s"}`), "private.json": jwttest.JWKS(jwttest.JWK(pairs["ES256"][0], `,"d":"AAAA"`)),
		"weak.json": jwttest.JWKS(jwttest.JWK(weak, "")), "even.json": jwttest.JWKS(strings.Replace(jwttest.JWK(pairs["RS256"][0], ""), `"e":"AQAB"`, `"e":"AQAA"`, 1)),
		"one.json":   jwttest.JWKS(strings.Replace(jwttest.JWK(pairs["RS256"][0], ""), `"e":"AQAB"`, `"e":"AQ"`, 1)),
		"great.json": jwttest.JWKS(strings.Replace(jwttest.JWK(pairs["RS256"][0], ""), `"e":"AQAB"`, `"e":"AQAAAAAAAAAB"`, 1)),
		"no_n.json":  jwttest.JWKS(`{"kty":"RSA","e":"AQAB"}`), "type.json": jwttest.JWKS(`{"kty":"RSA","e":1}`),
		"off.json": jwttest.JWKS(`{"kty":"EC","crv":"P-256","x":"AQ","y":"AQ"}`), "long.json": jwttest.JWKS(`{"kty":"EC","crv":"P-256","x":"` + strings.Repeat("_", 60) + `","y":"AQ"}`),
		"no_y.json": jwttest.JWKS(`{"kty":"EC","crv":"P-256","x":"AQ"}`), "short.json": jwttest.JWKS(`{"kty":"OKP","crv":"Ed25519","x":"AQ"}`),
	} {
		write(t, filepath.Join(dir, name), text)
	}
	pemFile := func(name string) Config { return Config{KeyFile: name} }
	jwksFile := func(name string) Config { return Config{JWKSFile: name} }
	cases := []struct {
		tokens Config
		wants  []string // for each line of the error, a text in it
	}{
		{Config{}, []string{"tokens.secret: there is no key; set one of"}},
		{Config{Secret: "short"}, []string{"tokens.secret: has 5 bytes, and HS256 needs at least 32"}},
		{Config{Secret: jwttest.Secret[:47], Algorithms: []string{"HS256", "HS384", "HS512"}}, []string{"HS384 needs at least 48", "HS512 needs at least 64"}},
		{Config{Secret: good}, []string{"tokens.secret: is the text of a PEM file"}},
		{Config{Secret: jwttest.Secret, KeyFile: "good.pem"}, []string{"tokens.secret: cannot be combined"}},
		{Config{Secret: jwttest.Secret, JWKSURL: "https://x.example/"}, []string{"tokens.secret: cannot be combined"}},
		{Config{Secret: jwttest.Secret, Algorithms: []string{"RS256"}}, []string{"tokens.algorithms: RS256 is verified with a public key"}},
		{Config{KeyFile: "good.pem", Algorithms: []string{"RS256", "HS256"}}, []string{"tokens.algorithms: HS256 is signed with a secret"}},
		{Config{JWKSURL: "https://x.example/", Algorithms: []string{"HS512"}}, []string{"tokens.algorithms: HS512 is signed with a secret"}},
		{Config{KeyFile: "good.pem", Algorithms: []string{"None", "rs256", ""}}, []string{`"None" would accept tokens`, `"rs256" is unknown; write some of HS256`, `"" is unknown`}},
		{Config{KeyFile: "good.pem", Algorithms: []string{"RS256", "ES256"}}, []string{"tokens.algorithms: there is no key for ES256"}},
		{Config{KeyFile: "good.pem", Algorithms: []string{"ES256"}}, []string{"tokens.key_file: good.pem: block 1: fits none of tokens.algorithms [ES256]; add RS256", "there is no key for ES256"}},
		{Config{JWKSFile: "good.json", Algorithms: []string{"RS256"}}, []string{"tokens.jwks_file: good.json: has no key for tokens.algorithms"}},
		{Config{Secret: jwttest.Secret, Leeway: 5*time.Minute + 1}, []string{"tokens.leeway: 5m0.000000001s is out of bounds"}},
		{Config{Secret: jwttest.Secret, Leeway: -1}, []string{"tokens.leeway"}},
		{Config{Secret: jwttest.Secret, Refresh: time.Hour}, []string{"tokens.refresh: is how often jwks_url is read"}},
		{Config{JWKSURL: "https://x.example/", Refresh: time.Minute - 1}, []string{"tokens.refresh: 59.999999999s is out of bounds"}},
		{Config{JWKSURL: "https://x.example/", Refresh: 25 * time.Hour}, []string{"tokens.refresh"}},
		{Config{JWKSURL: "http://x.example/", Header: "a b", Cookie: "a=b", Leeway: -1}, []string{`tokens.header: "a b"`, `tokens.cookie: "a=b"`,
			`tokens.jwks_url: "http://x.example/" is not encrypted`, "tokens.leeway"}},
		{Config{JWKSURL: "http://127.0.0.1.example/"}, []string{"tokens.jwks_url"}},
		{Config{JWKSURL: "http://user:pass@x.example/"}, []string{`"http://x.example" is not encrypted`}},
		{Config{JWKSURL: "x.example/jwks.json"}, []string{"tokens.jwks_url"}}, {Config{JWKSURL: "file:///etc/passwd"}, []string{"tokens.jwks_url"}},
		{Config{JWKSURL: "https://"}, []string{"tokens.jwks_url"}}, {Config{JWKSURL: ":"}, []string{"tokens.jwks_url"}},
		{pemFile("absent.pem"), []string{"tokens.key_file: stat "}}, {pemFile("."), []string{"tokens.key_file"}},
		{pemFile("empty.pem"), []string{"empty.pem: is not a PEM file"}}, {pemFile("text.pem"), []string{"is not a PEM file"}},
		{pemFile("weak.pem"), []string{"block 1: is an RSA key of 1024 bits; use one of 2048 to 8192"}}, {pemFile("p224.pem"), []string{"is a key of another kind"}},
		{pemFile("damaged.pem"), []string{"1 of its 1 blocks are damaged"}}, {pemFile("cut.pem"), []string{"1 of its 2 blocks are damaged"}},
		{pemFile("many.pem"), []string{"has 33 keys; the most is 32"}}, {pemFile("private.pem"), []string{"is a private key"}},
		{pemFile("request.pem"), []string{`is a "CERTIFICATE REQUEST"`}}, {pemFile("broken.pem"), []string{"block 1: asn1"}}, {pemFile("big.pem"), []string{"is longer than 1048576 bytes"}},
		{jwksFile("none.json"), []string{"has no key for"}}, {jwksFile("enc.json"), []string{"has no key for"}}, {jwksFile("text.json"), []string{"is not a JSON Web Key Set"}},
		{jwksFile("other.json"), []string{`it has no "keys"`}}, {jwksFile("list.json"), []string{"is not a JSON Web Key Set"}}, {jwksFile("many.json"), []string{"has 33 keys"}},
		{jwksFile("oct.json"), []string{`key 1 ("s"): is a secret`}}, {jwksFile("private.json"), []string{"is a private key"}}, {jwksFile("weak.json"), []string{"of 1024 bits"}},
		{jwksFile("even.json"), []string{"exponent 65536"}}, {jwksFile("one.json"), []string{`"e" is out of range; ask`}}, {jwksFile("great.json"), []string{`"e" is out of range; ask`}},
		{jwksFile("no_n.json"), []string{`requires parameters "n" and "e"; ask`}}, {jwksFile("type.json"), []string{"key 1"}}, {jwksFile("off.json"), []string{"key 1"}},
		{jwksFile("long.json"), []string{"not on the specified curve; ask"}}, {jwksFile("no_y.json"), []string{`requires parameters "crv", "x", and "y"; ask`}},
		{jwksFile("short.json"), []string{"should be 32 bytes; ask"}},
		{Config{KeyFile: "weak.pem", JWKSFile: "oct.json", Leeway: -1}, []string{"tokens.leeway", "tokens.key_file: weak.pem", "tokens.jwks_file: oct.json"}},
	}
	for _, c := range cases {
		_, err := New(c.tokens, dir)
		if err == nil {
			t.Errorf("%+v: no error; want %q", c.tokens, c.wants)
			continue
		}
		messages := strings.Split(err.Error(), "\n")
		if !slices.EqualFunc(messages, c.wants, strings.Contains) {
			t.Errorf("%+v:\n%q; want lines with\n%q", c.tokens, messages, c.wants)
		}
		if strings.Contains(err.Error(), jwttest.Secret[:10]) {
			t.Errorf("the error contains the secret: %v", err)
		}
	}
	t.Logf("counted: %d mistakes in tokens reported", len(cases))
}

func TestCacheOfTokensIsBounded(t *testing.T) {
	t.Parallel()
	var seen seenTokens
	sum := func(i int) (sum [sha256.Size]byte) {
		sum[0], sum[1], sum[2] = byte(i), byte(i>>8), byte(i>>16)
		return sum
	}
	const size, count = 1000, 20_000 // size: bytes of each token
	for i := range count {
		seen.add(sum(i), claims{}, size)
		if held := (len(seen.young) + len(seen.old)) * size; held > 2*maxGenerationBytes {
			t.Fatalf("after %d tokens, %d bytes are cached; want at most %d", i, held, 2*maxGenerationBytes)
		}
		if _, ok := seen.get(sum(0)); i%1000 == 0 && !ok {
			t.Fatalf("a token in repeated use was evicted after %d others", i)
		}
	}
	if _, ok := seen.get(sum(1)); ok {
		t.Error("a token that was used once, long ago, is still cached")
	}
}

// Only the genuine token is accepted. Claims of any payload that the issuer signs are read as other
// decoders read them.
func FuzzToken(f *testing.F) {
	issuer := newIssuer(f, "HS256", nil)
	genuine := issuer.token("", `{"sub":"victim",`+validClaims+`}`)
	f.Add(genuine, `{"sub":"victim",`+validClaims+`}`)
	f.Add(genuine+"=", `{"sub":42,"roles":["a",1,{"b":null}],`+validClaims+`}`)
	f.Add(genuine[1:], `{"realm":{"role":"x"},"realm.role":"y",`+validClaims+`}`)
	f.Add("", `{"sub":"a","sub":"b",`+validClaims+`}`)
	f.Add("..", `{"sub":"\ud800","e":1e3,`+validClaims+`}`)
	f.Fuzz(func(t *testing.T, text, payload string) {
		if c, err := issuer.verifier.Claims(text); (err == nil) != (text == genuine) {
			t.Fatalf("the token %q has the claims %v, %v; want only %q accepted", text, c, err, genuine)
		}
		c, err := issuer.verifier.Claims(issuer.token("", payload))
		if err != nil {
			return
		}
		var plain map[string]any
		if err := json.Unmarshal([]byte(payload), &plain); err != nil {
			t.Fatalf("a payload that is not JSON is accepted: %q: %v", payload, err)
		}
		if plain["iss"] != "https://issuer.example/" || plain["exp"].(float64) < float64(tokenNow.Unix())-DefaultLeeway.Seconds() {
			t.Fatalf("a payload with a wrong iss or exp is accepted: %q", payload)
		}
		for name, v := range plain {
			got, ok := c.Text(name)
			if want, isText := v.(string); ok && isText && got != want {
				t.Fatalf("claim %q is read as %q, and encoding/json reads it as %q; the payload is %q", name, got, want, payload)
			}
			c.Values(name)
		}
	})
}

func BenchmarkToken(b *testing.B) {
	for _, alg := range []string{"HS256", "RS256", "ES256", "EdDSA"} {
		issuer := newIssuer(b, alg, nil)
		token := issuer.token(`,"kid":"2026-07"`, `{"sub":"4c9f6b1e-7d0e-4e44-9d5e-0f6f2a8f0b11","email":"someone@example.com","plan":"gold",`+
			`"realm_access":{"roles":["user","admin","offline_access"]},"scope":"read write","jti":"0d1f9d5e-1c8c-4a39-8f5e-2a8f0b114c9f",`+validClaims+`}`)
		b.Run(alg+"/first", func(b *testing.B) {
			for b.Loop() {
				issuer.verifier.keys.Load().genuine.young = nil
				if _, err := issuer.verifier.Claims(token); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(alg+"/again", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := issuer.verifier.Claims(token); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
