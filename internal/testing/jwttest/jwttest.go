// Package jwttest makes keys and signs tokens, for tests.
package jwttest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"strings"
	"sync"

	gojwt "github.com/golang-jwt/jwt/v5"
)

// Secret has 64 bytes, which is enough for HS256, HS384 and HS512.
const Secret = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

// Pairs has two private keys or secrets for each algorithm: the issuer's, and another of the same
// kind.
var Pairs = sync.OnceValue(func() map[string][2]any {
	generators := map[string]func() (any, error){
		"RS256": func() (any, error) { return rsa.GenerateKey(rand.Reader, 2048) },
		"ES256": func() (any, error) { return ecdsa.GenerateKey(elliptic.P256(), rand.Reader) },
		"ES384": func() (any, error) { return ecdsa.GenerateKey(elliptic.P384(), rand.Reader) },
		"ES512": func() (any, error) { return ecdsa.GenerateKey(elliptic.P521(), rand.Reader) },
		"EdDSA": func() (any, error) {
			_, key, err := ed25519.GenerateKey(rand.Reader)
			return key, err
		},
	}
	pairs := make(map[string][2]any)
	for alg, generate := range generators {
		a, errA := generate()
		b, errB := generate()
		if errA != nil || errB != nil {
			panic(fmt.Sprint(errA, errB))
		}
		pairs[alg] = [2]any{a, b}
	}
	for _, alg := range []string{"RS384", "RS512", "PS256", "PS384", "PS512"} {
		pairs[alg] = pairs["RS256"]
	}
	for _, alg := range []string{"HS256", "HS384", "HS512"} {
		pairs[alg] = [2]any{[]byte(Secret), []byte(strings.Repeat("another secret..", 4))}
	}
	return pairs
})

// Sign returns a token with this header and payload, which are JSON.
func Sign(alg string, key any, header, payload string) string {
	text := Base64(header) + "." + Base64(payload)
	signature, err := gojwt.GetSigningMethod(alg).Sign(text, key)
	if err != nil {
		panic(err)
	}
	return text + "." + Base64(string(signature))
}

// Base64 encodes a text as the parts of tokens are encoded.
func Base64(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }

// PublicOf returns the public key of a private key.
func PublicOf(private any) any { return private.(crypto.Signer).Public() }

// PublicPEM returns a PEM file with the public keys of private keys.
func PublicPEM(privates ...any) string {
	var text strings.Builder
	for _, private := range privates {
		der, err := x509.MarshalPKIXPublicKey(PublicOf(private))
		if err != nil {
			panic(err)
		}
		_ = pem.Encode(&text, &pem.Block{Type: "PUBLIC KEY", Bytes: der})
	}
	return text.String()
}

// JWK returns the public key of a private key, as an entry of a JWKS. The text more has further
// members of the entry: it is empty or begins with a comma.
func JWK(private any, more string) string {
	switch key := PublicOf(private).(type) {
	case *rsa.PublicKey:
		return fmt.Sprintf(`{"kty":"RSA","n":%q,"e":%q%s}`, Base64(string(key.N.Bytes())), Base64(string(big.NewInt(int64(key.E)).Bytes())), more)
	case *ecdsa.PublicKey:
		point, err := key.Bytes()
		if err != nil {
			panic(err)
		}
		size := len(point) / 2
		return fmt.Sprintf(`{"kty":"EC","crv":%q,"x":%q,"y":%q%s}`, key.Params().Name, Base64(string(point[1:1+size])), Base64(string(point[1+size:])), more)
	case ed25519.PublicKey:
		return fmt.Sprintf(`{"kty":"OKP","crv":"Ed25519","x":%q%s}`, Base64(string(key)), more)
	}
	panic(fmt.Sprintf("no JWK for a key of type %T", private))
}

// JWKS returns a JSON Web Key Set of these entries.
func JWKS(keys ...string) string { return `{"keys":[` + strings.Join(keys, ",") + `]}` }
