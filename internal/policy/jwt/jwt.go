// Package jwt verifies JSON Web Tokens with keys from a secret, files or an issuer's URL. Policies
// use the claims of the tokens that it accepts.
package jwt

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	gojwt "github.com/golang-jwt/jwt/v5"

	"github.com/penstock/penstock/internal/boundedfile"
	"github.com/penstock/penstock/internal/syntax"
	"github.com/penstock/penstock/internal/wording"
	"github.com/penstock/penstock/policy"
)

// A Config says which JSON Web Tokens are valid. Rules can identify clients by the claims of valid
// tokens. A token is valid if a key of the Config signed it, it has not expired, and it is meant
// for this service. At least one of Secret, KeyFile, JWKSFile and JWKSURL must be set. Keys in a
// token's own header (jku, x5u, jwk) are ignored.
type Config struct {
	// Header is the request header with the token: "Bearer <token>" in Authorization and
	// Proxy-Authorization, the token alone in any other. Default: Authorization, or none if Cookie is
	// set. A request with two of these headers is malformed. So is a header that servers may read in
	// different ways.
	Header string `yaml:"header" jsonschema:"The request header with the token, after Bearer in Authorization and Proxy-Authorization. Default: Authorization, or none with a cookie."`

	// Cookie is the cookie with the token. This cookie is read only in requests without a token in
	// Header. Default: none. A request with two of these cookies is malformed too.
	Cookie string `yaml:"cookie" jsonschema:"The cookie with the token, for requests without one in the header. Default: none."`

	// Algorithms are the allowed signature algorithms: some of HS256, HS384, HS512, RS256, RS384,
	// RS512, PS256, PS384, PS512, ES256, ES384, ES512 and EdDSA. Default: the algorithm of each key.
	// The algorithm of a secret is HS256, and that of a key in a JWKS is its "alg". Any other key has
	// the only algorithm of its kind, or RS256 if it is an RSA key.
	Algorithms []string `yaml:"algorithms" jsonschema:"The allowed signature algorithms. Default: the algorithm of each key."`

	// Secret is the key of HS256, HS384 and HS512, as raw bytes. HS256 needs at least 32 bytes, HS384
	// 48 and HS512 64. A Secret cannot be combined with public keys, because a client could then sign
	// a token with a public key as the secret. Default: none.
	Secret string `yaml:"secret,secret" jsonschema:"The key of HS256, HS384 and HS512: at least 32, 48 and 64 bytes. Cannot be combined with public keys."`

	// KeyFile is a PEM file of public keys or certificates, at most 32. Only the key of a certificate
	// is used: its dates and its issuer are not checked. RSA keys have 2,048 to 8,192 bits. Default:
	// none.
	KeyFile string `yaml:"key_file" jsonschema:"A PEM file of public keys or certificates, at most 32."`

	JWKSFile string `yaml:"jwks_file" jsonschema:"A file with a JSON Web Key Set of public keys, at most 32."`

	// JWKSURL is where the issuer publishes its JSON Web Key Set, of at most 32 keys and 1 MiB. The
	// URL is https, or http to this machine. Redirects are not followed. While the URL cannot be read,
	// the keys of the last successful read stay in use. Before the first successful read, no token is
	// valid. Default: none.
	JWKSURL string `yaml:"jwks_url" jsonschema:"Where the issuer publishes its JSON Web Key Set: https, or http to this machine."`

	Refresh time.Duration `yaml:"refresh" jsonschema:"How often jwks_url is read: 1m to 24h. Default: 1h."`

	Issuer   string `yaml:"issuer" jsonschema:"What iss of a token must be. Default: any."`
	Audience string `yaml:"audience" jsonschema:"What must be in aud of a token. Default: any."`

	// Leeway is how far the clocks of the issuer and of this machine may differ: at most 5m. Leeway is
	// for the checks of "exp" (which every token must have), "nbf" and "iat". Default: 30s.
	Leeway time.Duration `yaml:"leeway" jsonschema:"How far the clocks of the issuer and of this machine may differ: at most 5m. Default: 30s."`
}

const DefaultLeeway = 30 * time.Second

const maxLeeway = 5 * time.Minute

// Warnings returns a warning for each recommended check that the Config does not make.
func (t Config) Warnings() (warnings []string) {
	if t.Audience == "" {
		warnings = append(warnings, "tokens.audience: is not set, so a token for another service is valid here too; "+
			"write the name of this service in \"aud\"")
	}
	if t.Issuer == "" && t.Secret == "" {
		warnings = append(warnings, "tokens.issuer: is not set, so a token of any issuer is valid if one of the keys signed it; "+
			"write what \"iss\" must be")
	}
	return warnings
}

// Files returns the names of the key files. Relative names are relative to the folder dir.
func (t Config) Files(dir string) (names []string) {
	for _, name := range []string{t.KeyFile, t.JWKSFile} {
		if name != "" {
			names = append(names, boundedfile.Join(dir, name))
		}
	}
	return names
}

// A Verifier verifies tokens. Many goroutines may use it at the same time.
type Verifier struct {
	tokens policy.Tokens

	parser         *gojwt.Parser
	claimChecks    *gojwt.Validator // of times, issuer and audience, which the parser does not check
	configuredKeys []verifyKey      // from secret and files
	keys           atomic.Pointer[keySet]
	keyFetcher     *fetcher // nil without a jwks_url

	now func() time.Time // replaced by tests
}

// New makes a Verifier and reads its key files. Relative names are relative to the folder dir. The
// network is not used before Start. The error joins a FieldError for each mistake.
func New(t Config, dir string) (*Verifier, error) {
	keys, err := t.readKeys(dir)
	if err := errors.Join(errors.Join(t.mistakes()...), err); err != nil {
		return nil, err
	}
	if err := t.checkUnused(keys); err != nil {
		return nil, err
	}

	v := &Verifier{configuredKeys: keys, now: time.Now}
	v.tokens = policy.Tokens{Header: http.CanonicalHeaderKey(t.Header), Cookie: t.Cookie, Verifier: v}
	if v.tokens.Header == "" && v.tokens.Cookie == "" {
		v.tokens.Header = "Authorization"
	}
	v.tokens.Summary = t.summary(v.tokens)
	options := []gojwt.ParserOption{
		gojwt.WithValidMethods(t.allowedAlgorithms()),
		gojwt.WithStrictDecoding(),
		gojwt.WithExpirationRequired(),
		gojwt.WithIssuedAt(),
		gojwt.WithLeeway(cmp.Or(t.Leeway, DefaultLeeway)),
		gojwt.WithTimeFunc(func() time.Time { return v.now() }),
	}
	if t.Issuer != "" {
		options = append(options, gojwt.WithIssuer(t.Issuer))
	}
	if t.Audience != "" {
		options = append(options, gojwt.WithAudience(t.Audience))
	}
	v.claimChecks = gojwt.NewValidator(options...)
	v.parser = gojwt.NewParser(append(options, gojwt.WithoutClaimsValidation())...)
	v.keys.Store(&keySet{list: keys})
	if t.JWKSURL != "" {
		v.keyFetcher = newFetcher(t.JWKSURL, cmp.Or(t.Refresh, DefaultRefresh), t.Algorithms)
	}
	return v, nil
}

// Tokens returns where requests have the tokens that the Verifier verifies.
func (v *Verifier) Tokens() policy.Tokens { return v.tokens }

// Start begins to read JWKSURL, and waits at most two seconds for the first response. Without
// JWKSURL it does nothing. After each read, report is called with its error, or nil. The calls do
// not overlap, and report may be nil. Before the first successful read, no token is valid.
func (v *Verifier) Start(report func(error)) {
	if v.keyFetcher == nil {
		return
	}
	v.keyFetcher.start(report, func(fetched []verifyKey) {
		v.keys.Store(&keySet{list: slices.Concat(v.configuredKeys, fetched)})
	})
}

// Close stops reading JWKSURL, and waits until a read in progress has ended. The keys stay in use.
func (v *Verifier) Close() {
	if v.keyFetcher != nil {
		v.keyFetcher.close()
	}
}

// IsReading reports whether JWKSURL is read regularly: from Start until Close.
func (v *Verifier) IsReading() bool { return v.keyFetcher != nil && v.keyFetcher.isRunning() }

// IsKnown reports whether a token's signature was checked before, so that Claims need not check it.
func (v *Verifier) IsKnown(token string) bool {
	keys, sum := v.keys.Load(), sha256.Sum256([]byte(token))
	if _, isGenuine := keys.genuine.get(sum); isGenuine {
		return true
	}
	_, isForged := keys.forged.get(sum)
	return isForged
}

// Claims returns the claims of a token, or why it is rejected. The result of the signature check is
// cached. All other checks are made each time.
func (v *Verifier) Claims(token string) (policy.Claims, *policy.TokenError) {
	if len(token) > syntax.MaxToken || strings.ContainsFunc(token, isOutsideToken) {
		return nil, &policy.TokenError{Reason: "malformed", Err: errors.New("it is too long, or has characters that a JSON Web Token cannot have")}
	}
	keys := v.keys.Load()
	sum := sha256.Sum256([]byte(token))
	c, isGenuine := keys.genuine.get(sum)
	if !isGenuine {
		if _, isForged := keys.forged.get(sum); isForged {
			return nil, rejection(gojwt.ErrTokenSignatureInvalid)
		}
		choose := func(parsed *gojwt.Token) (any, error) { return v.chooseKeys(keys.list, parsed) }
		if _, err := v.parser.ParseWithClaims(token, &c, choose); err != nil {
			e := rejection(err)
			if e.Reason == "signature" {
				keys.forged.add(sum, claims{}, len(token))
			}
			return nil, e
		}
		keys.genuine.add(sum, c, len(token))
	}
	if e := v.checkClaims(c); e != nil {
		return nil, e
	}
	return c.Claims, nil
}

// chooseKeys returns the keys that may have signed a token. They fit the token's algorithm. If both
// a key and the token have a key ID, the two IDs are equal.
func (v *Verifier) chooseKeys(keys []verifyKey, token *gojwt.Token) (any, error) {
	if _, ok := token.Header["crit"]; ok {
		return nil, errors.New("token's header has \"crit\", and no critical extension is supported")
	}
	kid, isText := token.Header["kid"].(string)
	if _, ok := token.Header["kid"]; ok && !isText {
		return nil, errors.New("token's \"kid\" is not a string")
	}
	var chosen gojwt.VerificationKeySet
	for _, k := range keys {
		fitsKeyID := k.kid == kid || k.kid == "" || kid == ""
		if fitsKeyID && slices.Contains(k.algorithms, token.Method.Alg()) {
			chosen.Keys = append(chosen.Keys, k.key)
		}
	}
	if len(chosen.Keys) == 0 {
		if v.keyFetcher != nil && kid != "" {
			v.keyFetcher.requestRead()
		}
		return nil, fmt.Errorf("there is no %s key with the ID %.64q", token.Method.Alg(), kid)
	}
	if n := len(chosen.Keys); n > MaxKeysTried {
		return nil, fmt.Errorf("token may be signed with any of %d %s keys, and at most %d are tried; the issuer must name the key by \"kid\"",
			n, token.Method.Alg(), MaxKeysTried)
	}
	return chosen, nil
}

// isOutsideToken reports whether a character is neither base64url nor the dot between a token's
// parts. Line ends are rejected too: decoders skip them, so one token would have many spellings.
func isOutsideToken(r rune) bool {
	return !syntax.IsAlphanumeric(r) && r != '-' && r != '_' && r != '.'
}

type FieldError struct {
	Field string // its name in a policy file, such as "jwks_url"
	Err   error
}

func (e *FieldError) Error() string { return "tokens." + e.Field + ": " + e.Err.Error() }
func (e *FieldError) Unwrap() error { return e.Err }

func fieldErrorf(field, format string, args ...any) error {
	return &FieldError{field, fmt.Errorf(format, args...)}
}

// mistakes returns the mistakes that can be found without reading files.
func (t Config) mistakes() (mistakes []error) {
	wrong := func(field, format string, args ...any) {
		mistakes = append(mistakes, fieldErrorf(field, format, args...))
	}
	if t.Header != "" && !syntax.IsToken(t.Header) {
		wrong("header", "%q is not a header name; write one such as Authorization", t.Header)
	}
	if t.Cookie != "" && !syntax.IsToken(t.Cookie) {
		wrong("cookie", "%q is not a cookie name; write one such as session_token", t.Cookie)
	}
	if t.Secret != "" && t.hasPublicKeys() {
		wrong("secret", "cannot be combined with key_file, jwks_file or jwks_url: a client could sign a token with a public key as the "+
			"secret; keep one kind")
	}
	if t.Secret == "" && !t.hasPublicKeys() {
		wrong("secret", "there is no key; set one of secret, key_file, jwks_file and jwks_url")
	}
	mistakes = append(mistakes, t.algorithmMistakes()...)
	if t.Secret != "" {
		mistakes = append(mistakes, t.secretMistakes()...)
	}
	if t.JWKSURL != "" {
		if err := checkKeyURL(t.JWKSURL); err != nil {
			wrong("jwks_url", "%w", err)
		}
	}
	if t.Refresh != 0 && t.JWKSURL == "" {
		wrong("refresh", "is how often jwks_url is read, and jwks_url is not set; remove it")
	} else if t.Refresh != 0 && (t.Refresh < minRefresh || t.Refresh > maxRefresh) {
		wrong("refresh", "%v is out of bounds; write a time from 1m to 24h", t.Refresh)
	}
	if t.Leeway < 0 || t.Leeway > maxLeeway {
		wrong("leeway", "%v is out of bounds; write a time of at most 5m", t.Leeway)
	}
	return mistakes
}

func (t Config) hasPublicKeys() bool { return t.KeyFile != "" || t.JWKSFile != "" || t.JWKSURL != "" }

func (t Config) algorithmMistakes() (mistakes []error) {
	wrong := func(format string, args ...any) {
		mistakes = append(mistakes, fieldErrorf("algorithms", format, args...))
	}
	for _, a := range t.Algorithms {
		switch {
		case strings.EqualFold(a, "none"):
			wrong("%q would accept tokens without a signature; remove it", a)
		case isSecretAlgorithm(a) && t.hasPublicKeys():
			wrong("%s is signed with a secret, and the keys here are public: any client could sign; remove it", a)
		case isPublicAlgorithm(a) && t.Secret != "" && !t.hasPublicKeys():
			wrong("%s is verified with a public key, and only secret is set; remove it, or set key_file, jwks_file or jwks_url instead of secret", a)
		case !isSecretAlgorithm(a) && !isPublicAlgorithm(a):
			wrong("%q is unknown; write some of %s", a, strings.Join(Algorithms(), ", "))
		}
	}
	return mistakes
}

func (t Config) secretMistakes() (mistakes []error) {
	if strings.Contains(t.Secret, "-----BEGIN ") {
		return []error{fieldErrorf("secret", "is the text of a PEM file; write the name of a file with the public key in key_file")}
	}
	for _, a := range t.allowedAlgorithms() {
		if least := minSecretBytes(a); len(t.Secret) < least {
			mistakes = append(mistakes, fieldErrorf("secret", "has %d bytes, and %s needs at least %d; make one with openssl rand -base64 64",
				len(t.Secret), a, least))
		}
	}
	return mistakes
}

// checkUnused returns an error for each key without an allowed algorithm, and for each algorithm
// without a key.
func (t Config) checkUnused(keys []verifyKey) error {
	var unused []error
	for _, k := range keys {
		if len(k.algorithms) == 0 {
			unused = append(unused, fieldErrorf(k.field, "%sfits none of tokens.algorithms [%s]; add %s, or remove the key",
				k.location, strings.Join(t.Algorithms, ", "), defaultAlgorithm(k.key)))
		}
	}
	for _, a := range t.Algorithms {
		if t.JWKSURL == "" && !slices.ContainsFunc(keys, func(k verifyKey) bool { return slices.Contains(k.algorithms, a) }) {
			unused = append(unused, fieldErrorf("algorithms", "there is no key for %s; remove it, or add its key", a))
		}
	}
	return errors.Join(unused...)
}

// allowedAlgorithms returns the algorithms of which a token must have one.
func (t Config) allowedAlgorithms() []string {
	switch {
	case len(t.Algorithms) > 0:
		return t.Algorithms
	case t.Secret != "":
		return []string{defaultAlgorithm([]byte(nil))} // a secret is a key of type []byte
	default:
		return publicAlgorithms
	}
}

// checkKeyURL returns why keys cannot be read from an address. An attacker who can change the
// response can make tokens for any client, so it must be encrypted.
func checkKeyURL(address string) error {
	u, err := url.Parse(address)
	switch {
	case err != nil:
		return fmt.Errorf("%w; write one such as https://issuer.example/.well-known/jwks.json", err)
	case u.Host == "" || (u.Scheme != "https" && u.Scheme != "http"):
		return fmt.Errorf("%q is not a web address; write one such as https://issuer.example/.well-known/jwks.json", redactURL(address, u))
	case u.Scheme == "http" && !strings.EqualFold(u.Hostname(), "localhost") && !net.ParseIP(u.Hostname()).IsLoopback():
		return fmt.Errorf("%q is not encrypted, so others could change the keys; write https (http is allowed only to this machine)", redactURL(address, u))
	}
	return nil
}

// redactURL returns an address for a message, without its user and password. Otherwise the address
// is as it was written, because values of variables are masked in messages if they are unchanged.
func redactURL(written string, u *url.URL) string {
	if u.User != nil {
		return u.Scheme + "://" + u.Host
	}
	return written
}

// summary describes how tokens are verified. The summary contains no secret.
func (t Config) summary(tokens policy.Tokens) string {
	var in, keys []string
	if tokens.Header != "" {
		in = append(in, "header "+tokens.Header)
	}
	if tokens.Cookie != "" {
		in = append(in, "cookie "+tokens.Cookie)
	}
	for _, file := range []string{t.KeyFile, t.JWKSFile} {
		if file != "" {
			keys = append(keys, wording.Plain(file))
		}
	}
	if u, err := url.Parse(t.JWKSURL); err == nil && t.JWKSURL != "" {
		// The rest of the URL may contain a password.
		bare := url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}
		keys = append(keys, bare.String()+", read every "+wording.Period(cmp.Or(t.Refresh, DefaultRefresh)))
	}
	text := "in " + wording.List(in, "or") + "; signed with a key of " + wording.List(keys, "or")
	if len(keys) == 0 {
		text = "in " + wording.List(in, "or") + "; signed with the secret"
	}
	if len(t.Algorithms) > 0 {
		text += " by " + wording.List(t.Algorithms, "or")
	}
	if t.Issuer != "" {
		text += "; issuer " + wording.Plain(t.Issuer)
	}
	if t.Audience != "" {
		text += "; audience " + wording.Plain(t.Audience)
	}
	return text + "; clocks may differ by " + wording.Period(cmp.Or(t.Leeway, DefaultLeeway))
}
