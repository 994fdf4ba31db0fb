package jwt

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"testing"

	gojwt "github.com/golang-jwt/jwt/v5"

	"github.com/penstock/penstock/internal/testing/effort"
	"github.com/penstock/penstock/internal/testing/jwttest"
)

// withMember returns a key of a JWKS in which the text of one member is replaced.
func withMember(t testing.TB, key, member, text string) string {
	t.Helper()
	before, rest, ok := strings.Cut(key, `"`+member+`":"`)
	_, after, closed := strings.Cut(rest, `"`)
	if !ok || !closed {
		t.Fatalf("%s has no %q", key, member)
	}
	return before + `"` + member + `":"` + text + `"` + after
}

// decodeMember returns the bytes of a member of a key.
func decodeMember(t testing.TB, key, name string) []byte {
	t.Helper()
	var members map[string]string
	if err := json.Unmarshal([]byte(key), &members); err != nil {
		t.Fatal(err)
	}
	data, err := base64.RawURLEncoding.DecodeString(members[name])
	if err != nil || len(data) == 0 {
		t.Fatalf("%s: the member %q cannot be read: %v", key, name, err)
	}
	return data
}

// Each row is an unusual key of a set. Such a key is used, reported as wrong, or skipped without an
// error.
func TestOddKeysOfASet(t *testing.T) {
	effort.SkipUnderRace(t)
	t.Parallel()
	pairs := jwttest.Pairs()
	jwk := func(alg string) string { return jwttest.JWK(pairs[alg][0], "") }
	jwkWith := func(alg, members string) string { return jwttest.JWK(pairs[alg][0], members) }
	rs, es, ed := jwk("RS256"), jwk("ES256"), jwk("EdDSA")
	x, n := decodeMember(t, es, "x"), decodeMember(t, rs, "n")
	key := pairs["ES256"][0].(*ecdsa.PrivateKey)
	p := key.Params().P // the prime of the curve's field
	d, err := key.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	raw := func(data []byte) string { return jwttest.Base64(string(data)) }
	number := func(n *big.Int) string { return raw(n.Bytes()) }
	powerOfTwo := func(shift uint, plus int64) string {
		return number(new(big.Int).Add(new(big.Int).Lsh(big.NewInt(1), shift), big.NewInt(plus)))
	}
	privateError := "is a private key, which only the issuer may have; remove"
	rows := []struct {
		name, key string
		alg       string // the algorithm of the tokens that the key could have signed
		want      string // part of the error; "" if the key is used, "left out" if it is ignored without an error
	}{
		{name: "usual RSA key", key: rs, alg: "RS256"},
		{name: "usual EC key", key: es, alg: "ES256"},
		{name: "usual OKP key", key: ed, alg: "EdDSA"},

		{name: "padded modulus", key: withMember(t, rs, "n", base64.URLEncoding.EncodeToString(n)+"="), alg: "RS256"},
		{name: "padded exponent", key: withMember(t, rs, "e", "AQAB="), alg: "RS256"},
		{name: "padded x", key: withMember(t, es, "x", base64.URLEncoding.EncodeToString(x)), alg: "ES256"},
		{name: "padded point of Ed25519", key: withMember(t, ed, "x", base64.URLEncoding.EncodeToString(decodeMember(t, ed, "x"))), alg: "EdDSA"},
		{name: "modulus of padding alone", key: withMember(t, rs, "n", "="), alg: "RS256", want: "RSA key of 0 bits; use"},
		{name: "padding in front", key: withMember(t, rs, "e", "=AQAB"), alg: "RS256", want: "illegal base64"},
		{name: "letters of standard base64", key: withMember(t, rs, "n", "+/"+raw(n)), alg: "RS256", want: "illegal base64"},
		{name: "space in a number", key: withMember(t, rs, "e", "AQ AB"), alg: "RS256", want: "illegal base64"},
		{name: "zeros in front of the modulus", key: withMember(t, rs, "n", raw(append([]byte{0, 0}, n...))), alg: "RS256"},
		{name: "zeros in front of x", key: withMember(t, es, "x", raw(append([]byte{0}, x...))), alg: "ES256"},

		{name: "exponent 0", key: withMember(t, rs, "e", "AA"), alg: "RS256", want: "out of range; ask"},
		{name: "exponent 1", key: withMember(t, rs, "e", "AQ"), alg: "RS256", want: "out of range; ask"},
		{name: "exponent 2", key: withMember(t, rs, "e", "Ag"), alg: "RS256", want: "exponent 2; make a key"},
		{name: "exponent 65536", key: withMember(t, rs, "e", "AQAA"), alg: "RS256", want: "exponent 65536; make a key"},
		{name: "exponent 2^32+65537", key: withMember(t, rs, "e", powerOfTwo(32, 65537)), alg: "RS256", want: "out of range; ask"},
		{name: "exponent 2^63+65537", key: withMember(t, rs, "e", powerOfTwo(63, 65537)), alg: "RS256", want: "out of range; ask"},
		{name: "exponent 2^64+1", key: withMember(t, rs, "e", powerOfTwo(64, 1)), alg: "RS256", want: "out of range; ask"},
		{name: "exponent 2^64+65537", key: withMember(t, rs, "e", powerOfTwo(64, 65537)), alg: "RS256", want: "E in marshal does not match E in"},
		{name: "exponent of 512 KiB", key: withMember(t, rs, "e", raw(bytes.Repeat([]byte{255}, 512<<10))), alg: "RS256", want: "; ask"},
		{name: "exponent left out", key: strings.Replace(rs, `"e":`, `"f":`, 1), alg: "RS256", want: `requires parameters "n" and "e"; ask`},
		{name: "modulus of 512 KiB", key: withMember(t, rs, "n", raw(bytes.Repeat([]byte{255}, 512<<10))), alg: "RS256", want: "of 4194304 bits; use"},
		{name: "modulus of 8,200 bits", key: withMember(t, rs, "n", raw(bytes.Repeat([]byte{255}, maxRSABits/8+1))), alg: "RS256", want: "of 8200 bits; use"},
		{name: "modulus without its second half", key: withMember(t, rs, "n", raw(n[:128])), alg: "RS256", want: "of 1024 bits; use"},
		{name: "RSA with a curve", key: jwkWith("RS256", `,"crv":"P-256"`), alg: "RS256"},

		{name: "x changed", key: withMember(t, es, "x", raw(append(slices.Clone(x[:31]), x[31]^1))), alg: "ES256", want: "not on the specified curve; ask"},
		{name: "x and y swapped", key: withMember(t, withMember(t, es, "x", raw(decodeMember(t, es, "y"))), "y", raw(x)), alg: "ES256", want: "not on the specified curve; ask"},
		{name: "point 0, 0", key: withMember(t, withMember(t, es, "x", "AA"), "y", "AA"), alg: "ES256", want: "not on the specified curve; ask"},
		{name: "x + p", key: withMember(t, es, "x", number(new(big.Int).Add(new(big.Int).SetBytes(x), p))), alg: "ES256", want: "not on the specified curve; ask"},
		{name: "x a byte short", key: withMember(t, es, "x", raw(x[:31])), alg: "ES256", want: "not on the specified curve; ask"},
		{name: "x a byte long", key: withMember(t, es, "x", raw(append(slices.Clone(x), 7))), alg: "ES256", want: "not on the specified curve; ask"},
		{name: "x of 512 KiB", key: withMember(t, es, "x", raw(bytes.Repeat([]byte{255}, 512<<10))), alg: "ES256", want: "not on the specified curve; ask"},
		{name: "y left out", key: strings.Replace(es, `"y":`, `"z":`, 1), alg: "ES256", want: `requires parameters "crv", "x", and "y"; ask`},
		{name: "curve left out", key: strings.Replace(es, `"crv":`, `"z":`, 1), alg: "ES256", want: `requires parameters "crv", "x", and "y"; ask`},
		{name: "curve P-384 for a point of P-256", key: withMember(t, es, "crv", "P-384"), alg: "ES256", want: "not on the specified curve; ask"},
		{name: "point of P-521 on P-256", key: withMember(t, jwk("ES512"), "crv", "P-256"), alg: "ES256", want: "not on the specified curve; ask"},
		{name: "EC on a curve of OKP", key: withMember(t, es, "crv", "Ed25519"), alg: "ES256", want: "left out"},
		{name: "OKP on a curve of EC", key: withMember(t, ed, "crv", "P-256"), alg: "EdDSA", want: "left out"},
		{name: "EC called RSA", key: withMember(t, es, "kty", "RSA"), alg: "ES256", want: `requires parameters "n" and "e"; ask`},
		{name: "RSA called EC", key: withMember(t, rs, "kty", "EC"), alg: "RS256", want: `requires parameters "crv", "x", and "y"; ask`},

		{name: "Ed25519 of no byte", key: withMember(t, ed, "x", ""), alg: "EdDSA", want: `requires parameters "crv" and "x"; ask`},
		{name: "Ed25519 of 31 bytes", key: withMember(t, ed, "x", raw(make([]byte, 31))), alg: "EdDSA", want: "should be 32 bytes; ask"},
		{name: "Ed25519 of 33 bytes", key: withMember(t, ed, "x", raw(make([]byte, 33))), alg: "EdDSA", want: "should be 32 bytes; ask"},
		{name: "Ed25519 of its private key", key: withMember(t, ed, "x", raw(pairs["EdDSA"][0].(ed25519.PrivateKey))), alg: "EdDSA", want: "should be 32 bytes; ask"},

		{name: "kty twice", key: jwkWith("ES256", `,"kty":"EC"`), alg: "ES256", want: `"kty" occurs twice; ask`},
		{name: "kid twice", key: jwkWith("ES256", `,"kid":"a","kid":"b"`), alg: "ES256", want: `"kid" occurs twice; ask`},
		{name: "kid twice, once escaped", key: jwkWith("ES256", `,"kid":"a","\u006bid":"b"`), alg: "ES256", want: `"kid" occurs twice; ask`},
		{name: "use twice", key: jwkWith("ES256", `,"use":"enc","use":"sig"`), alg: "ES256", want: `"use" occurs twice; ask`},
		{name: "modulus twice", key: jwkWith("RS256", `,"n":"`+raw(n)+`"`), alg: "RS256", want: `"n" occurs twice; ask`},
		{name: "d twice, empty last", key: jwkWith("ES256", `,"d":"AQ","d":""`), alg: "ES256", want: `"d" occurs twice; ask`},
		{name: "40 levels deep", key: jwkWith("ES256", `,"ext":`+strings.Repeat("[", 40)+strings.Repeat("]", 40)), alg: "ES256", want: "deeper than 32 levels; ask"},

		{name: "secret", key: `{"kty":"oct","k":"` + jwttest.Base64(jwttest.Secret) + `"}`, alg: "HS256", want: "is a secret; write it"},
		{name: "secret for signatures", key: `{"kty":"oct","k":"` + jwttest.Base64(jwttest.Secret) + `","use":"sig","alg":"HS256"}`, alg: "HS256", want: "is a secret; write it"},
		{name: "secret without a k", key: `{"kty":"oct"}`, alg: "HS256", want: "is a secret; write it"},
		{name: "secret with kty in upper case", key: `{"kty":"OCT","k":"` + jwttest.Base64(jwttest.Secret) + `"}`, alg: "HS256", want: "left out"},
		{name: "secret in a public key", key: jwkWith("ES256", `,"k":"`+jwttest.Base64(jwttest.Secret)+`","alg":"HS256"`), alg: "HS256", want: "left out"},
		{name: "RSA for HS256", key: jwkWith("RS256", `,"alg":"HS256"`), alg: "RS256", want: "left out"},
		{name: "alg none", key: jwkWith("RS256", `,"alg":"none"`), alg: "RS256", want: "left out"},

		{name: "private EC", key: jwkWith("ES256", `,"d":"`+raw(d)+`"`), alg: "ES256", want: privateError},
		{name: "private OKP", key: jwkWith("EdDSA", `,"d":"`+raw(pairs["EdDSA"][0].(ed25519.PrivateKey).Seed())+`"`), alg: "EdDSA", want: privateError},
		{name: "private RSA", key: jwkWith("RS256", `,"d":"`+raw(pairs["RS256"][0].(*rsa.PrivateKey).D.Bytes())+`"`), alg: "RS256", want: privateError},
		{name: "one prime of RSA", key: jwkWith("RS256", `,"p":"`+raw(pairs["RS256"][0].(*rsa.PrivateKey).Primes[0].Bytes())+`"`), alg: "RS256", want: privateError},
		{name: "other prime of RSA", key: jwkWith("RS256", `,"oth":[{"r":"AQ"}]`), alg: "RS256", want: privateError},
		{name: "d in upper case", key: jwkWith("ES256", `,"D":"AQ"`), alg: "ES256", want: privateError},
		{name: "d, and empty in upper case", key: jwkWith("ES256", `,"d":"AQ","D":""`), alg: "ES256", want: privateError},
		{name: "d null", key: jwkWith("ES256", `,"d":null`), alg: "ES256"},
		{name: "d empty", key: jwkWith("ES256", `,"d":""`), alg: "ES256"},

		{name: "unknown curve", key: withMember(t, es, "crv", "secp256k1"), alg: "ES256", want: "left out"},
		{name: "unknown curve and no y", key: `{"kty":"EC","crv":"BLS12381G1","x":"!"}`, alg: "ES256", want: "left out"},
		{name: "curve of encryption", key: withMember(t, ed, "crv", "X25519"), alg: "EdDSA", want: "left out"},
		{name: "curve of encryption, damaged", key: `{"kty":"OKP","crv":"X25519","x":"AAAA"}`, alg: "EdDSA", want: "left out"},
		{name: "unknown OKP", key: `{"kty":"OKP","crv":"Ed448","x":"!"}`, alg: "EdDSA", want: "left out"},
		{name: "curve in lower case", key: withMember(t, es, "crv", "p-256"), alg: "ES256", want: "left out"},
		{name: "unknown kty", key: `{"kty":"AKP","alg":"ML-DSA-44","pub":"AAAA"}`, alg: "ES256", want: "left out"},
		{name: "kty in lower case", key: withMember(t, rs, "kty", "rsa"), alg: "RS256", want: "left out"},
		{name: "no kty", key: `{}`, alg: "ES256", want: "left out"},
		{name: "null", key: `null`, alg: "ES256", want: "left out"},
		{name: "number", key: `7`, alg: "ES256", want: "cannot unmarshal number"},
		{name: "list", key: `[]`, alg: "ES256", want: "cannot unmarshal array"},
		{name: "kid a number", key: jwkWith("ES256", `,"kid":1`), alg: "ES256", want: "cannot unmarshal number"},

		{name: "damaged certificate", key: jwkWith("ES256", `,"x5c":["AAAA"],"x5t":"!","x5t#S256":"!"`), alg: "ES256"},
		{name: "expired certificate", key: jwkWith("EdDSA", `,"x5c":["`+publicX5C(pairs["EdDSA"][0])+`"]`), alg: "EdDSA"},
		{name: "certificate of another key", key: jwkWith("ES256", `,"x5c":["`+publicX5C(pairs["ES256"][1])+`"]`), alg: "ES256"},
		{name: "certificate at a URL", key: jwkWith("ES256", `,"x5u":"http://127.0.0.1:1/x.pem"`), alg: "ES256"},
		{name: "unknown operations", key: jwkWith("ES256", `,"key_ops":["verify","dance"]`), alg: "ES256"},
		{name: "unknown use", key: jwkWith("ES256", `,"use":"dance"`), alg: "ES256", want: "left out"},
	}
	acceptedKeys := 0
	for _, row := range rows {
		keys, wrong := parseJWKS([]byte(jwttest.JWKS(row.key)), nil)
		message := "left out"
		switch {
		case len(keys) == 1 && len(wrong) == 0:
			message = ""
		case len(wrong) == 1:
			message = wrong[0].Error()
		}
		if !strings.Contains(message, row.want) || (message == "") != (row.want == "") {
			t.Errorf("%s: %d keys are used, with the error %q; want %q\n%.300s", row.name, len(keys), message, row.want, row.key)
		}
		if len(wrong) > 0 && (!strings.HasPrefix(message, "key 1 (") || !strings.Contains(message, ";") || strings.Contains(message, "\n") || len(message) > 300) {
			t.Errorf("%s: the error is %q; want one line with the place, the mistake and how to fix it", row.name, message)
		}

		// The odd key stands beside a good one. The token is one that the odd key could have signed.
		good := jwttest.JWK(pairs["ES384"][0], "")
		keys, _ = parseJWKS([]byte(jwttest.JWKS(good, row.key, good)), nil)
		v := fromSet(t, Config{}, jwttest.JWKS(good))
		v.keys.Store(&keySet{list: keys})
		payload := `{"sub":"x",` + validClaims + `}`
		for alg, private := range map[string]any{row.alg: pairs[row.alg][0], "HS256": []byte(jwttest.Secret)} {
			want := row.want == "" && alg == row.alg
			if accepts(v, jwttest.Sign(alg, private, `{"alg":"`+alg+`"}`, payload)) != want {
				t.Errorf("%s: a token of %s is accepted: %t; want %t", row.name, alg, !want, want)
			}
		}
		if !accepts(v, jwttest.Sign("ES384", pairs["ES384"][0], `{"alg":"ES384"}`, payload)) {
			t.Errorf("%s: the good keys around it are not used", row.name)
		}
		if row.want == "" {
			acceptedKeys++
		}
	}
	t.Logf("counted: %d odd keys of a set (%d of them usable)", len(rows), acceptedKeys)
}

// For every set of keys: nothing panics, each key that is used is a sound public key, and each
// error has one line.
func FuzzKeySet(f *testing.F) {
	pairs := jwttest.Pairs()
	for _, alg := range []string{"RS256", "ES256", "ES384", "ES512", "EdDSA"} {
		f.Add(jwttest.JWK(pairs[alg][0], `,"kid":"k","use":"sig","key_ops":["verify"]`))
		f.Add(jwttest.JWK(pairs[alg][0], `,"d":"AQ","x5c":["AAAA"],"alg":"`+alg+`"`))
		f.Add(jwttest.JWK(pairs[alg][0], "") + "," + jwttest.JWK(pairs[alg][1], ""))
	}
	f.Add(`{"kty":"oct","k":"AAAA"},{"kty":"RSA","n":"AQ","e":"AQ"},{"kty":"EC","crv":"P-256","x":"AQ","y":"AQ"},7,null,[]`)
	f.Fuzz(func(t *testing.T, text string) {
		keys, wrong := parseJWKS([]byte(jwttest.JWKS(text)), nil)
		var set struct{ Keys []json.RawMessage }
		if err := json.Unmarshal([]byte(jwttest.JWKS(text)), &set); err != nil && len(keys) > 0 {
			t.Fatalf("a set that is not JSON has keys: %q: %v", text, err)
		}
		for _, key := range keys {
			if err := explainUnsound(key); err != nil {
				t.Fatalf("%s is used and is not sound: %v; the set is %q", key.location, err, text)
			}
			var n int
			if _, err := fmt.Sscanf(key.location, "key %d ", &n); err != nil {
				t.Fatalf("%q does not begin with the number of the key: %v", key.location, err)
			}
			var members map[string]any
			if err := json.Unmarshal(set.Keys[n-1], &members); err != nil || members["kty"] == "oct" {
				t.Fatalf("%s is a secret and is used (error %v); the set is %q", key.location, err, text)
			}
			if d, ok := members["d"]; ok && d != nil && d != "" {
				t.Fatalf("%s is a private key and is used; the set is %q", key.location, text)
			}
		}
		for _, err := range wrong {
			if !strings.Contains(err.Error(), ";") || strings.ContainsAny(err.Error(), "\r\n") {
				t.Fatalf("the error is not one line with how to fix it: %q", err)
			}
		}
	})
}

// explainUnsound returns why a key should not be used. explainUnsound shares no code with the
// package.
func explainUnsound(k verifyKey) error {
	switch key := k.key.(type) {
	case *rsa.PublicKey:
		if key.Size() < 2048/8 || key.Size() > 8192/8 || key.E < 3 || key.E > 1<<31-1 || key.E%2 != 1 {
			return fmt.Errorf("an RSA key of %d bits with the exponent %d", key.N.BitLen(), key.E)
		}
	case *ecdsa.PublicKey:
		if _, err := key.Bytes(); err != nil {
			return err
		}
	case ed25519.PublicKey:
		if len(key) != 32 {
			return fmt.Errorf("an Ed25519 key of %d bytes; want 32", len(key))
		}
	default:
		return fmt.Errorf("a key of type %T", key)
	}
	if len(k.algorithms) == 0 {
		return errors.New("it has no algorithm")
	}
	for _, alg := range k.algorithms {
		signature := bytes.Repeat([]byte{0x55}, map[string]int{"ES256": 64, "ES384": 96, "ES512": 132, "EdDSA": 64}[alg])
		if key, ok := k.key.(*rsa.PublicKey); ok {
			signature = bytes.Repeat([]byte{0x55}, key.Size())
		}
		if !isPublicAlgorithm(alg) || gojwt.GetSigningMethod(alg).Verify("x", signature, k.key) == nil {
			return fmt.Errorf("verifies a random signature of %s", alg)
		}
	}
	return nil
}
