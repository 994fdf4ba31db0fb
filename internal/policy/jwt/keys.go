package jwt

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/MicahParks/jwkset"

	"github.com/penstock/penstock/internal/boundedfile"
)

// A keySet is the keys in use, with a cache of signature checks. Each new keySet begins with an
// empty cache, so tokens of a removed key are rejected.
type keySet struct {
	list    []verifyKey
	genuine seenTokens // tokens that one of these keys has signed
	forged  seenTokens // tokens that none of these keys has signed; without claims
}

type verifyKey struct {
	kid        string   // its key ID in a JWKS; "" fits every token
	algorithms []string // the allowed algorithms that it fits
	key        any      // []byte, *rsa.PublicKey, *ecdsa.PublicKey or ed25519.PublicKey
	field      string   // the field of Config that it comes from
	location   string   // where it was read, for messages: "" or a text such as "keys.pem: block 1: "
}

// MaxKeys is how many keys a file or a set may have. MaxKeysTried is how many keys are tried for
// one token.
const (
	MaxKeys      = 32
	MaxKeysTried = 8
)

const (
	maxKeyBytes = 1 << 20 // bytes of a file or a response
	minRSABits  = 2048
	maxRSABits  = 8192
)

// The algorithms, by whether their keys must stay secret.
var (
	secretAlgorithms = []string{"HS256", "HS384", "HS512"}
	publicAlgorithms = []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"}
)

func Algorithms() []string { return slices.Concat(secretAlgorithms, publicAlgorithms) }

func isSecretAlgorithm(algorithm string) bool { return slices.Contains(secretAlgorithms, algorithm) }
func isPublicAlgorithm(algorithm string) bool { return slices.Contains(publicAlgorithms, algorithm) }

// minSecretBytes returns the least number of bytes of a secret: that of the algorithm's hash
// (RFC 7518, 3.2).
func minSecretBytes(algorithm string) int {
	switch algorithm {
	case "HS256":
		return 32
	case "HS384":
		return 48
	case "HS512":
		return 64
	}
	return 0
}

func defaultAlgorithm(key any) string {
	switch key := key.(type) {
	case []byte:
		return "HS256"
	case *rsa.PublicKey:
		return "RS256"
	case *ecdsa.PublicKey:
		switch key.Curve {
		case elliptic.P256():
			return "ES256"
		case elliptic.P384():
			return "ES384"
		case elliptic.P521():
			return "ES512"
		}
	case ed25519.PublicKey:
		return "EdDSA"
	}
	return ""
}

// algorithmsOf returns which of the wanted algorithms a key fits. own is the algorithm that a JWKS
// gives the key, or "". If wanted is empty, own is wanted, or else the key's default algorithm.
func algorithmsOf(key any, own string, wanted []string) []string {
	byDefault := defaultAlgorithm(key)
	_, isRSA := key.(*rsa.PublicKey)
	_, isSecret := key.([]byte)
	fits := func(a string) bool {
		isForRSA := strings.HasPrefix(a, "RS") || strings.HasPrefix(a, "PS")
		return a == byDefault || isRSA && isForRSA || isSecret && isSecretAlgorithm(a)
	}
	if len(wanted) == 0 {
		wanted = []string{byDefault}
		if own != "" {
			wanted = []string{own}
		}
	}
	var algorithms []string
	for _, a := range wanted {
		isKnown := isSecretAlgorithm(a) || isPublicAlgorithm(a)
		if isKnown && fits(a) && (own == "" || own == a) {
			algorithms = append(algorithms, a)
		}
	}
	return algorithms
}

// readKeys returns the secret and the keys in files. The error joins one error for each mistake.
func (t Config) readKeys(dir string) (keys []verifyKey, err error) {
	if t.Secret != "" {
		secret := []byte(t.Secret)
		keys = append(keys, verifyKey{key: secret, algorithms: algorithmsOf(secret, "", t.Algorithms), field: "secret"})
	}
	read := func(field, name string, parse func(data []byte, wanted []string) ([]verifyKey, []error)) {
		if name == "" {
			return
		}
		data, readErr := boundedfile.Read(boundedfile.Join(dir, name), maxKeyBytes)
		if readErr != nil {
			err = errors.Join(err, fieldErrorf(field, "%w; a relative name is relative to the folder of the policy file", readErr))
			return
		}
		found, wrong := parse(data, t.Algorithms)
		if len(found) == 0 && len(wrong) == 0 {
			wrong = []error{errors.New("has no key for tokens.algorithms; check that the file is the issuer's")}
		}
		for _, w := range wrong {
			err = errors.Join(err, fieldErrorf(field, "%s: %w", name, w))
		}
		for i := range found {
			found[i].field, found[i].location = field, fmt.Sprintf("%s: %s: ", name, found[i].location)
		}
		keys = append(keys, found...)
	}
	read("key_file", t.KeyFile, parsePEM)
	read("jwks_file", t.JWKSFile, parseJWKS)
	return keys, err
}

// parsePEM returns the public keys of a PEM file, and an error for each block without a usable key.
func parsePEM(data []byte, wanted []string) (keys []verifyKey, wrong []error) {
	decoded := 0 // blocks
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		decoded++
		location := fmt.Sprintf("block %d", decoded)
		key, err := parseBlock(block)
		if err == nil {
			err = checkPublicKey(key)
		}
		if err != nil {
			wrong = append(wrong, fmt.Errorf("%s: %w", location, err))
			continue
		}
		keys = append(keys, verifyKey{key: key, algorithms: algorithmsOf(key, "", wanted), location: location})
	}
	if blocks := bytes.Count(data, []byte("-----BEGIN ")); blocks != decoded {
		wrong = append(wrong, fmt.Errorf("%d of its %d blocks are damaged; copy the file again", blocks-decoded, blocks))
	} else if decoded == 0 {
		wrong = append(wrong, errors.New("is not a PEM file; it needs a line -----BEGIN PUBLIC KEY----- or -----BEGIN CERTIFICATE-----"))
	}
	if decoded > MaxKeys {
		return nil, append(wrong, fmt.Errorf("has %d keys; the most is %d", decoded, MaxKeys))
	}
	return keys, wrong
}

func parseBlock(block *pem.Block) (any, error) {
	switch {
	case block.Type == "PUBLIC KEY":
		key, err := x509.ParsePKIXPublicKey(block.Bytes)
		return key, explainDamage(err)
	case block.Type == "RSA PUBLIC KEY":
		key, err := x509.ParsePKCS1PublicKey(block.Bytes)
		return key, explainDamage(err)
	case block.Type == "CERTIFICATE":
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, explainDamage(err)
		}
		return certificate.PublicKey, nil
	case strings.HasSuffix(block.Type, "PRIVATE KEY"):
		return nil, errors.New("is a private key, which only the issuer may have; use the output of openssl pkey -pubout")
	}
	return nil, fmt.Errorf("is a %q; use a PUBLIC KEY or a CERTIFICATE", block.Type)
}

// checkPublicKey returns why a public key is not safe or not supported, or nil.
func checkPublicKey(key any) error {
	switch key := key.(type) {
	case *rsa.PublicKey:
		if bits := key.N.BitLen(); bits < minRSABits || bits > maxRSABits {
			return fmt.Errorf("is an RSA key of %d bits; use one of %d to %d", bits, minRSABits, maxRSABits)
		}
		if key.E < 3 || key.E%2 == 0 {
			return fmt.Errorf("is an RSA key with the exponent %d; make a key with 65537", key.E)
		}
		return nil
	case *ecdsa.PublicKey, ed25519.PublicKey:
		if defaultAlgorithm(key) != "" {
			return nil
		}
	}
	return errors.New("is a key of another kind; use RSA, P-256, P-384, P-521 or Ed25519")
}

// signingCurves are the curves of keys that can sign tokens. "" is for RSA.
var signingCurves = []jwkset.CRV{"", jwkset.CrvP256, jwkset.CrvP384, jwkset.CrvP521, jwkset.CrvEd25519}

var errNotForTokens = errors.New("is not for signing tokens")

// parseJWKS returns the public keys that can sign tokens, and an error for each key that is not
// safe. Keys for other purposes and keys of an unknown kind are skipped.
func parseJWKS(data []byte, wanted []string) (keys []verifyKey, wrong []error) {
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(data, &set); err != nil {
		return nil, []error{fmt.Errorf("is not a JSON Web Key Set: %w; use the JSON that the issuer publishes", err)}
	}
	if set.Keys == nil {
		return nil, []error{errors.New("is not a JSON Web Key Set: it has no \"keys\"; use the JSON that the issuer publishes")}
	}
	if len(set.Keys) > MaxKeys {
		return nil, []error{fmt.Errorf("has %d keys; the most is %d", len(set.Keys), MaxKeys)}
	}
	for i, raw := range set.Keys {
		key, err := parseJWK(raw, wanted)
		if errors.Is(err, errNotForTokens) {
			continue
		}
		if err != nil {
			wrong = append(wrong, fmt.Errorf("key %d (%.64q): %w", i+1, key.kid, err))
			continue
		}
		key.location = fmt.Sprintf("key %d (%.64q)", i+1, key.kid)
		if len(key.algorithms) > 0 {
			keys = append(keys, key)
		}
	}
	return keys, wrong
}

// parseJWK reads one key of a set (RFC 7517, 7518 and 8037).
func parseJWK(raw []byte, wanted []string) (verifyKey, error) {
	var j jwkset.JWKMarshal
	err := json.Unmarshal(raw, &j)
	k := verifyKey{kid: j.KID}
	if err != nil {
		return k, explainDamage(err)
	}
	members, err := decodeStrictly(json.NewDecoder(bytes.NewReader(raw)), maxClaimsDepth)
	if err != nil {
		return k, explainDamage(err)
	}
	if err := checkJWK(j, members); err != nil {
		return k, err
	}
	if k.key, err = publicKey(j); err != nil {
		return k, err
	}
	own := string(j.ALG)
	if own == "Ed25519" { // the name in keys (RFC 9864); tokens have EdDSA
		own = "EdDSA"
	}
	k.algorithms = algorithmsOf(k.key, own, wanted)
	return k, checkPublicKey(k.key)
}

// checkJWK returns why the kind or the members of a key forbid its use, or nil. The key's numbers
// are not checked here.
func checkJWK(j jwkset.JWKMarshal, members any) error {
	canVerify := len(j.KEYOPS) == 0 || slices.Contains(j.KEYOPS, jwkset.KeyOpsVerify)
	switch {
	case j.USE != "" && j.USE != jwkset.UseSig, !canVerify, !slices.Contains(signingCurves, j.CRV):
		return errNotForTokens
	case j.KTY == jwkset.KtyOct:
		return errors.New("is a secret; write it in tokens.secret")
	case isPrivate(members):
		return errors.New("is a private key, which only the issuer may have; remove \"d\" and its other private members")
	}
	return nil
}

// isPrivate reports whether a key has a member that only private keys have, in upper or lower case.
func isPrivate(key any) bool {
	members, _ := key.(map[string]any)
	for name, v := range members {
		isPrivateMember := slices.Contains([]string{"d", "p", "q", "dp", "dq", "qi", "oth"}, strings.ToLower(name))
		if isPrivateMember && v != nil && v != "" {
			return true
		}
	}
	return false
}

// publicKey returns the key itself. The certificates of the key are not read, because they may be
// out of date, or published at another URL.
func publicKey(j jwkset.JWKMarshal) (any, error) {
	withoutCertificates := jwkset.JWKMarshal{KTY: j.KTY, CRV: j.CRV, X: j.X, Y: j.Y, N: j.N, E: j.E}
	key, err := jwkset.NewJWKFromMarshal(withoutCertificates, jwkset.JWKMarshalOptions{}, jwkset.JWKValidateOptions{})
	if errors.Is(err, jwkset.ErrUnsupportedKey) {
		return nil, errNotForTokens
	}
	return key.Key(), explainDamage(err)
}

// explainDamage returns the error of a key that cannot be read, with advice how to fix it, in one
// line. It returns nil for nil.
func explainDamage(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s; ask the issuer for the key again, or remove it", strings.ReplaceAll(err.Error(), "\n", ": "))
}

// seenTokens is a cache of tokens whose signature was checked. Clients send the same token many
// times, and a signature check takes 30 to 100 times as long as a look-up. The dates in a token's
// claims are not a part of the result: they are checked at each use. The cache has two generations
// of at most 4 MiB of tokens each. When the younger one is full, it replaces the older one. The
// zero value is ready for use.
type seenTokens struct {
	mu         sync.Mutex
	young, old map[[sha256.Size]byte]seenToken
	youngBytes int // the size of the young tokens
}

type seenToken struct {
	claims claims
	bytes  int // the size of the token
}

const maxGenerationBytes = 4 << 20 // bytes of all tokens of one generation

// get returns the claims of a token. get also moves the token to the younger generation.
func (s *seenTokens) get(sum [sha256.Size]byte) (claims, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t, ok := s.young[sum]; ok {
		return t.claims, true
	}
	t, ok := s.old[sum]
	if ok {
		s.addLocked(sum, t)
	}
	return t.claims, ok
}

func (s *seenTokens) add(sum [sha256.Size]byte, c claims, size int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.addLocked(sum, seenToken{c, size})
}

// addLocked adds a token to the younger generation. A full generation becomes the older one first.
func (s *seenTokens) addLocked(sum [sha256.Size]byte, t seenToken) {
	if _, ok := s.young[sum]; ok {
		return
	}
	if s.young == nil || s.youngBytes+t.bytes > maxGenerationBytes {
		s.young, s.old, s.youngBytes = make(map[[sha256.Size]byte]seenToken), s.young, 0
	}
	s.young[sum] = t
	s.youngBytes += t.bytes
}
