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

	"github.com/penstock/penstock/internal/effort"
	"github.com/penstock/penstock/policy/internal/jwttest"
)

// with returns a key of a JWKS in which the text of one member is replaced.
func with(t testing.TB, key, member, text string) string {
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

// Each row is an unusual key of a set. It is used, reported as wrong, or skipped without an error.
func TestOddKeysOfASet(t *testing.T) {
	effort.WithoutRace(t)
	t.Parallel()
	pairs := jwttest.Pairs()
	jwk := func(alg string) string { return jwttest.JWK(pairs[alg][0], "") }
	more := func(alg, more string) string { return jwttest.JWK(pairs[alg][0], more) }
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
		name, key, alg string
		want           string // part of the error; "" if the key is used, "left out" if it is ignored without an error
	}{
		{"as it should be, RSA", rs, "RS256", ""}, {"as it should be, EC", es, "ES256", ""}, {"as it should be, OKP", ed, "EdDSA", ""},

		{"padded modulus", with(t, rs, "n", base64.URLEncoding.EncodeToString(n)+"="), "RS256", ""},
		{"padded exponent", with(t, rs, "e", "AQAB="), "RS256", ""},
		{"padded x", with(t, es, "x", base64.URLEncoding.EncodeToString(x)), "ES256", ""},
		{"padded point of Ed25519", with(t, ed, "x", base64.URLEncoding.EncodeToString(decodeMember(t, ed, "x"))), "EdDSA", ""},
		{"padding alone", with(t, rs, "n", "="), "RS256", "RSA key of 0 bits; use"},
		{"padding in front", with(t, rs, "e", "=AQAB"), "RS256", "illegal base64"},
		{"letters of standard base64", with(t, rs, "n", "+/"+raw(n)), "RS256", "illegal base64"},
		{"space in a number", with(t, rs, "e", "AQ AB"), "RS256", "illegal base64"},
		{"zeros in front of the modulus", with(t, rs, "n", raw(append([]byte{0, 0}, n...))), "RS256", ""},
		{"zeros in front of x", with(t, es, "x", raw(append([]byte{0}, x...))), "ES256", ""},

		{"exponent 0", with(t, rs, "e", "AA"), "RS256", "out of range; ask"},
		{"exponent 1", with(t, rs, "e", "AQ"), "RS256", "out of range; ask"},
		{"exponent 2", with(t, rs, "e", "Ag"), "RS256", "exponent 2; make a key"},
		{"exponent 65536", with(t, rs, "e", "AQAA"), "RS256", "exponent 65536; make a key"},
		{"exponent 2^32+65537", with(t, rs, "e", powerOfTwo(32, 65537)), "RS256", "out of range; ask"},
		{"exponent 2^63+65537", with(t, rs, "e", powerOfTwo(63, 65537)), "RS256", "out of range; ask"},
		{"exponent 2^64+1", with(t, rs, "e", powerOfTwo(64, 1)), "RS256", "out of range; ask"},
		{"exponent 2^64+65537", with(t, rs, "e", powerOfTwo(64, 65537)), "RS256", "E in marshal does not match E in"},
		{"exponent of 512 KiB", with(t, rs, "e", raw(bytes.Repeat([]byte{255}, 512<<10))), "RS256", "; ask"},
		{"exponent left out", strings.Replace(rs, `"e":`, `"f":`, 1), "RS256", `requires parameters "n" and "e"; ask`},
		{"modulus of 512 KiB", with(t, rs, "n", raw(bytes.Repeat([]byte{255}, 512<<10))), "RS256", "of 4194304 bits; use"},
		{"modulus of 8,200 bits", with(t, rs, "n", raw(bytes.Repeat([]byte{255}, maxRSABits/8+1))), "RS256", "of 8200 bits; use"},
		{"modulus without its second half", with(t, rs, "n", raw(n[:128])), "RS256", "of 1024 bits; use"},
		{"RSA with a curve", more("RS256", `,"crv":"P-256"`), "RS256", ""},

		{"x changed", with(t, es, "x", raw(append(slices.Clone(x[:31]), x[31]^1))), "ES256", "not on the specified curve; ask"},
		{"x and y swapped", with(t, with(t, es, "x", raw(decodeMember(t, es, "y"))), "y", raw(x)), "ES256", "not on the specified curve; ask"},
		{"0, 0", with(t, with(t, es, "x", "AA"), "y", "AA"), "ES256", "not on the specified curve; ask"},
		{"x + p", with(t, es, "x", number(new(big.Int).Add(new(big.Int).SetBytes(x), p))), "ES256", "not on the specified curve; ask"},
		{"x a byte short", with(t, es, "x", raw(x[:31])), "ES256", "not on the specified curve; ask"},
		{"x a byte long", with(t, es, "x", raw(append(slices.Clone(x), 7))), "ES256", "not on the specified curve; ask"},
		{"x of 512 KiB", with(t, es, "x", raw(bytes.Repeat([]byte{255}, 512<<10))), "ES256", "not on the specified curve; ask"},
		{"y left out", strings.Replace(es, `"y":`, `"z":`, 1), "ES256", `requires parameters "crv", "x", and "y"; ask`},
		{"curve left out", strings.Replace(es, `"crv":`, `"z":`, 1), "ES256", `requires parameters "crv", "x", and "y"; ask`},
		{"another's curve", with(t, es, "crv", "P-384"), "ES256", "not on the specified curve; ask"},
		{"point of P-521 on P-256", with(t, jwk("ES512"), "crv", "P-256"), "ES256", "not on the specified curve; ask"},
		{"EC on a curve of OKP", with(t, es, "crv", "Ed25519"), "ES256", "left out"},
		{"OKP on a curve of EC", with(t, ed, "crv", "P-256"), "EdDSA", "left out"},
		{"EC called RSA", with(t, es, "kty", "RSA"), "ES256", `requires parameters "n" and "e"; ask`},
		{"RSA called EC", with(t, rs, "kty", "EC"), "RS256", `requires parameters "crv", "x", and "y"; ask`},

		{"Ed25519 of no byte", with(t, ed, "x", ""), "EdDSA", `requires parameters "crv" and "x"; ask`},
		{"Ed25519 of 31 bytes", with(t, ed, "x", raw(make([]byte, 31))), "EdDSA", "should be 32 bytes; ask"},
		{"Ed25519 of 33 bytes", with(t, ed, "x", raw(make([]byte, 33))), "EdDSA", "should be 32 bytes; ask"},
		{"Ed25519 of its private key", with(t, ed, "x", raw(pairs["EdDSA"][0].(ed25519.PrivateKey))), "EdDSA", "should be 32 bytes; ask"},

		{"kty twice", more("ES256", `,"kty":"EC"`), "ES256", `"kty" occurs twice; ask`},
		{"kid twice", more("ES256", `,"kid":"a","kid":"b"`), "ES256", `"kid" occurs twice; ask`},
		{"kid twice, once escaped", more("ES256", `,"kid":"a","\u006bid":"b"`), "ES256", `"kid" occurs twice; ask`},
		{"use twice", more("ES256", `,"use":"enc","use":"sig"`), "ES256", `"use" occurs twice; ask`},
		{"modulus twice", more("RS256", `,"n":"`+raw(n)+`"`), "RS256", `"n" occurs twice; ask`},
		{"d twice, nothing last", more("ES256", `,"d":"AQ","d":""`), "ES256", `"d" occurs twice; ask`},
		{"deep", more("ES256", `,"ext":`+strings.Repeat("[", 40)+strings.Repeat("]", 40)), "ES256", "deeper than 32 levels; ask"},

		{"secret", `{"kty":"oct","k":"` + jwttest.Base64(jwttest.Secret) + `"}`, "HS256", "is a secret; write it"},
		{"secret for signatures", `{"kty":"oct","k":"` + jwttest.Base64(jwttest.Secret) + `","use":"sig","alg":"HS256"}`, "HS256", "is a secret; write it"},
		{"secret without a k", `{"kty":"oct"}`, "HS256", "is a secret; write it"},
		{"secret in other letters", `{"kty":"OCT","k":"` + jwttest.Base64(jwttest.Secret) + `"}`, "HS256", "left out"},
		{"secret in a public key", more("ES256", `,"k":"`+jwttest.Base64(jwttest.Secret)+`","alg":"HS256"`), "HS256", "left out"},
		{"RSA for HS256", more("RS256", `,"alg":"HS256"`), "RS256", "left out"},
		{"alg none", more("RS256", `,"alg":"none"`), "RS256", "left out"},

		{"private EC", more("ES256", `,"d":"`+raw(d)+`"`), "ES256", privateError},
		{"private OKP", more("EdDSA", `,"d":"`+raw(pairs["EdDSA"][0].(ed25519.PrivateKey).Seed())+`"`), "EdDSA", privateError},
		{"private RSA", more("RS256", `,"d":"`+raw(pairs["RS256"][0].(*rsa.PrivateKey).D.Bytes())+`"`), "RS256", privateError},
		{"one prime of RSA", more("RS256", `,"p":"`+raw(pairs["RS256"][0].(*rsa.PrivateKey).Primes[0].Bytes())+`"`), "RS256", privateError},
		{"other prime of RSA", more("RS256", `,"oth":[{"r":"AQ"}]`), "RS256", privateError},
		{"d in other letters", more("ES256", `,"D":"AQ"`), "ES256", privateError},
		{"d, and nothing in other letters", more("ES256", `,"d":"AQ","D":""`), "ES256", privateError},
		{"d null", more("ES256", `,"d":null`), "ES256", ""},
		{"d empty", more("ES256", `,"d":""`), "ES256", ""},

		{"unknown curve", with(t, es, "crv", "secp256k1"), "ES256", "left out"},
		{"unknown curve and no y", `{"kty":"EC","crv":"BLS12381G1","x":"!"}`, "ES256", "left out"},
		{"curve of encryption", with(t, ed, "crv", "X25519"), "EdDSA", "left out"},
		{"curve of encryption, damaged", `{"kty":"OKP","crv":"X25519","x":"AAAA"}`, "EdDSA", "left out"},
		{"unknown OKP", `{"kty":"OKP","crv":"Ed448","x":"!"}`, "EdDSA", "left out"},
		{"curve in other letters", with(t, es, "crv", "p-256"), "ES256", "left out"},
		{"unknown kty", `{"kty":"AKP","alg":"ML-DSA-44","pub":"AAAA"}`, "ES256", "left out"},
		{"kty in other letters", with(t, rs, "kty", "rsa"), "RS256", "left out"},
		{"no kty", `{}`, "ES256", "left out"}, {"null", `null`, "ES256", "left out"},
		{"number", `7`, "ES256", "cannot unmarshal number"}, {"list", `[]`, "ES256", "cannot unmarshal array"},
		{"kid a number", more("ES256", `,"kid":1`), "ES256", "cannot unmarshal number"},

		{"certificate that is none", more("ES256", `,"x5c":["AAAA"],"x5t":"!","x5t#S256":"!"`), "ES256", ""},
		{"certificate of last year", more("EdDSA", `,"x5c":["`+publicX5C(pairs["EdDSA"][0])+`"]`), "EdDSA", ""},
		{"certificate of another key", more("ES256", `,"x5c":["`+publicX5C(pairs["ES256"][1])+`"]`), "ES256", ""},
		{"certificate elsewhere", more("ES256", `,"x5u":"http://127.0.0.1:1/x.pem"`), "ES256", ""},
		{"unknown operations", more("ES256", `,"key_ops":["verify","dance"]`), "ES256", ""},
		{"unknown use", more("ES256", `,"use":"dance"`), "ES256", "left out"},
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
			t.Errorf("%s: %d keys, the error %q; want %q\n%.300s", row.name, len(keys), message, row.want, row.key)
		}
		if len(wrong) > 0 && (!strings.HasPrefix(message, "key 1 (") || !strings.Contains(message, ";") || strings.Contains(message, "\n") || len(message) > 300) {
			t.Errorf("%s: want one line that says where, what, and how to fix it: %q", row.name, message)
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
				t.Errorf("%s: a token of %s is accepted: %v; want %v", row.name, alg, !want, want)
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
				t.Fatalf("%s is used and is not sound: %v: %q", key.from, err, text)
			}
			var n int
			if _, err := fmt.Sscanf(key.from, "key %d ", &n); err != nil {
				t.Fatalf("%q does not begin with the number of the key: %v", key.from, err)
			}
			var members map[string]any
			if err := json.Unmarshal(set.Keys[n-1], &members); err != nil || members["kty"] == "oct" {
				t.Fatalf("%s is a secret and is used: %v: %q", key.from, err, text)
			}
			if d, ok := members["d"]; ok && d != nil && d != "" {
				t.Fatalf("%s is private and is used: %q", key.from, text)
			}
		}
		for _, err := range wrong {
			if !strings.Contains(err.Error(), ";") || strings.ContainsAny(err.Error(), "\r\n") {
				t.Fatalf("the error is not one line with how to fix it: %q", err)
			}
		}
	})
}

// explainUnsound returns why a key should not be used. It does not share code with the package.
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
