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
	"github.com/penstock/penstock/internal/wording"
	"github.com/penstock/penstock/policy"
)

// A Config says which JSON Web Config are believed, so that rules can name a caller by what a token
// says. A token is believed if a key given here signed it, it has not expired, and it is meant for
// this service. At least one of Secret, KeyFile, JWKSFile and JWKSURL must be given. What a token's
// own header says of keys (jku, x5u, jwk) is never looked at.
type Config struct {
	// Header is the request header that holds the token: "Bearer <token>" in Authorization and
	// Proxy-Authorization, the bare token in any other. Default: Authorization, or none if Cookie is
	// given. A request that has it twice, or in a form that servers may read in different ways, is
	// malformed.
	Header string `yaml:"header" jsonschema:"The request header that holds the token, behind Bearer in Authorization and Proxy-Authorization. Default: Authorization, or none with a cookie."`

	// Cookie is the cookie that holds the bare token. It counts only in requests whose Header holds
	// none. Default: none. A request that has it twice is malformed too.
	Cookie string `yaml:"cookie" jsonschema:"The cookie that holds the token, for requests whose header holds none. Default: none."`

	// Algorithms are those that may have signed a token, of HS256, HS384, HS512, RS256, RS384, RS512,
	// PS256, PS384, PS512, ES256, ES384, ES512 and EdDSA. Default: what each key is for. That is HS256
	// for a secret; the "alg" that a JWKS gives its key; otherwise RS256 for an RSA key, and for
	// others the one algorithm of their kind.
	Algorithms []string `yaml:"algorithms" jsonschema:"Which algorithms may have signed a token. Default: what each key is for."`

	// Secret is the key of HS256, HS384 and HS512, byte for byte: at least 32, 48 and 64 bytes.
	// Clients that know it can sign tokens, so it is never used together with public keys. Default:
	// none.
	Secret string `yaml:"secret" jsonschema:"The key of HS256, HS384 and HS512: at least 32, 48 and 64 bytes. Never together with public keys."`

	// KeyFile is a PEM file of public keys or certificates, at most 32. Of a certificate, only the key
	// is used: neither its dates nor who signed it matter. RSA keys have 2,048 to 8,192 bits. Default:
	// none.
	KeyFile string `yaml:"key_file" jsonschema:"A PEM file of public keys or certificates, at most 32."`

	// JWKSFile is a JSON Web Key Set of public keys, at most 32. Default: none.
	JWKSFile string `yaml:"jwks_file" jsonschema:"A file with a JSON Web Key Set of public keys, at most 32."`

	// JWKSURL is where the issuer publishes its JSON Web Key Set, of at most 32 keys and 1 MiB. It is
	// https, or http to this machine; redirects are not followed. While it cannot be reached, the keys
	// last read from it stay believed; until it was reached once, no token is. Default: none.
	JWKSURL string `yaml:"jwks_url" jsonschema:"Where the issuer publishes its JSON Web Key Set: https, or http to this machine."`

	// Refresh is how often JWKSURL is read again: 1m to 24h. A token whose key ID has no key has it
	// read sooner, but never within a minute of the last time. Default: 1h.
	Refresh time.Duration `yaml:"refresh" jsonschema:"How often jwks_url is read again: 1m to 24h. Default: 1h."`

	// Issuer is what a token's "iss" must be. Default: anything, or nothing.
	Issuer string `yaml:"issuer" jsonschema:"What iss of a token must be. Default: anything, or nothing."`

	// Audience must be in a token's "aud". Default: anything, or nothing.
	Audience string `yaml:"audience" jsonschema:"What must be in aud of a token. Default: anything, or nothing."`

	// Leeway is how far the clocks of the issuer and of this machine may differ when "exp" (which
	// every token must have), "nbf" and "iat" are checked: at most 5m. Default: 30s.
	Leeway time.Duration `yaml:"leeway" jsonschema:"How far the clocks of the issuer and of this machine may differ: at most 5m. Default: 30s."`
}

// DefaultLeeway is how far clocks may differ unless Config.Leeway says otherwise.
const DefaultLeeway = 30 * time.Second

const maxLeeway = 5 * time.Minute

// Warnings says which checks are left out that are better made.
func (t Config) Warnings() (warnings []string) {
	if t.Audience == "" {
		warnings = append(warnings, "tokens.audience: is not set, so a token made for another service is believed too; "+
			"write what this service is called in \"aud\"")
	}
	if t.Issuer == "" && t.Secret == "" {
		warnings = append(warnings, "tokens.issuer: is not set, so a token of any issuer is believed if one of the keys signed it; "+
			"write what \"iss\" must be")
	}
	return warnings
}

// Files are the names of the files that keys are read from. Relative names start from the folder
// dir.
func (t Config) Files(dir string) (names []string) {
	for _, name := range []string{t.KeyFile, t.JWKSFile} {
		if name != "" {
			names = append(names, boundedfile.Join(dir, name))
		}
	}
	return names
}

// A Verifier tells valid tokens from others. It may be used at any time by many goroutines.
type Verifier struct {
	tokens policy.Tokens

	parser *gojwt.Parser
	checks *gojwt.Validator // of times, issuer and audience, which the parser leaves alone
	fixed  []verifyKey      // from secret and files
	keys   atomic.Pointer[keySet]
	issuer *fetcher // nil without a jwks_url

	now func() time.Time // replaced by tests
}

// New reads the keys that are in files; relative names start from the folder dir. The network is
// not used until Start. The error tells all mistakes at once, each under the name of its field.
func New(t Config, dir string) (*Verifier, error) {
	keys, err := t.readKeys(dir)
	if err := errors.Join(errors.Join(t.mistakes()...), err); err != nil {
		return nil, err
	}
	if err := t.uselessAlgorithms(keys); err != nil {
		return nil, err
	}

	v := &Verifier{fixed: keys, now: time.Now}
	v.tokens = policy.Tokens{Header: http.CanonicalHeaderKey(t.Header), Cookie: t.Cookie, Verifier: v}
	if v.tokens.Header == "" && v.tokens.Cookie == "" {
		v.tokens.Header = "Authorization"
	}
	v.tokens.Summary = t.summary(v.tokens)
	options := []gojwt.ParserOption{
		gojwt.WithValidMethods(t.methods()),
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
	v.checks = gojwt.NewValidator(options...)
	v.parser = gojwt.NewParser(append(options, gojwt.WithoutClaimsValidation())...)
	v.keys.Store(&keySet{list: keys})
	if t.JWKSURL != "" {
		v.issuer = newFetcher(t.JWKSURL, cmp.Or(t.Refresh, DefaultRefresh), t.Algorithms)
	}
	return v, nil
}

// Tokens say where requests carry the tokens that the Verifier verifies.
func (v *Verifier) Tokens() policy.Tokens { return v.tokens }

// Start begins to read JWKSURL, and waits for the first answer for at most two seconds. Without
// JWKSURL it does nothing. One goroutine at a time calls report, which may be nil, after each
// reading: with nil if it succeeded. No token is valid until keys were read once.
func (v *Verifier) Start(report func(error)) {
	if v.issuer == nil {
		return
	}
	v.issuer.start(report, func(fetched []verifyKey) {
		v.keys.Store(&keySet{list: slices.Concat(v.fixed, fetched)})
	})
}

// Close stops the reading of JWKSURL and waits for its end. The keys that were read stay valid.
func (v *Verifier) Close() {
	if v.issuer != nil {
		v.issuer.close()
	}
}

// IsReading tells whether JWKSURL is read from time to time: from Start until Close.
func (v *Verifier) IsReading() bool { return v.issuer != nil && v.issuer.isRunning() }

// IsKnown tells whether a token's signature was checked before, so that Claims need not check it.
func (v *Verifier) IsKnown(token string) bool {
	keys, sum := v.keys.Load(), sha256.Sum256([]byte(token))
	if _, genuine := keys.seen.get(sum); genuine {
		return true
	}
	_, forged := keys.forged.get(sum)
	return forged
}

// Claims returns the claims of a token, or why it is rejected. Its signature is checked once, and
// the result is remembered; the rest is checked each time.
func (v *Verifier) Claims(token string) (policy.Claims, *policy.TokenError) {
	if len(token) > policy.MaxTokenLength || strings.ContainsFunc(token, notInToken) {
		return nil, &policy.TokenError{Reason: "malformed", Err: errors.New("it is too long, or has letters that no JSON Web Token has")}
	}
	keys := v.keys.Load()
	sum := sha256.Sum256([]byte(token))
	c, ok := keys.seen.get(sum)
	if !ok {
		if _, forged := keys.forged.get(sum); forged {
			return nil, rejection(gojwt.ErrTokenSignatureInvalid)
		}
		_, err := v.parser.ParseWithClaims(token, &c, func(token *gojwt.Token) (any, error) { return v.choose(keys.list, token) })
		if err != nil {
			e := rejection(err)
			if e.Reason == "signature" {
				keys.forged.add(sum, claims{}, len(token))
			}
			return nil, e
		}
		keys.seen.add(sum, c, len(token))
	}
	if e := v.valid(c); e != nil {
		return nil, e
	}
	return c.Claims, nil
}

// choose gives the keys that may have signed a token: those of its algorithm, and of its key ID if
// both have one.
func (v *Verifier) choose(keys []verifyKey, token *gojwt.Token) (any, error) {
	if _, ok := token.Header["crit"]; ok {
		return nil, errors.New("token's header has \"crit\": none of what that may demand is understood")
	}
	kid, isText := token.Header["kid"].(string)
	if _, ok := token.Header["kid"]; ok && !isText {
		return nil, errors.New("token's \"kid\" is not a string")
	}
	var chosen gojwt.VerificationKeySet
	for _, k := range keys {
		if slices.Contains(k.algorithms, token.Method.Alg()) && (k.kid == kid || k.kid == "" || kid == "") {
			chosen.Keys = append(chosen.Keys, k.key)
		}
	}
	if len(chosen.Keys) == 0 {
		if v.issuer != nil && kid != "" {
			v.issuer.ask()
		}
		return nil, fmt.Errorf("no %s key with the ID %.64q is known", token.Method.Alg(), kid)
	}
	if n := len(chosen.Keys); n > MaxKeysTried {
		return nil, fmt.Errorf("token may be signed with any of %d %s keys, and at most %d are tried; its issuer must name the key by \"kid\"",
			n, token.Method.Alg(), MaxKeysTried)
	}
	return chosen, nil
}

// notInToken says whether a letter is neither base64url nor the dot between a token's parts. Line
// ends are not either: decoders skip them, so one token would have many spellings.
func notInToken(r rune) bool {
	return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || r == '-' || r == '_' || r == '.')
}

// mistakes are what is wrong with the fields in themselves, before any file is read.
func (t Config) mistakes() (mistakes []error) {
	wrong := func(field, format string, args ...any) {
		mistakes = append(mistakes, fmt.Errorf("tokens."+field+": "+format, args...))
	}
	if t.Header != "" && !policy.IsToken(t.Header) {
		wrong("header", "%q is no name of a header; write one such as Authorization", t.Header)
	}
	if t.Cookie != "" && !policy.IsToken(t.Cookie) {
		wrong("cookie", "%q is no name of a cookie; write one such as session_token", t.Cookie)
	}
	if t.Secret != "" && t.hasPublicKeys() {
		wrong("secret", "cannot be used together with key_file, jwks_file or jwks_url: a token could be signed with a public key taken "+
			"for a secret; keep one kind")
	}
	if t.Secret == "" && !t.hasPublicKeys() {
		wrong("secret", "there is no key; give one of secret, key_file, jwks_file and jwks_url")
	}
	mistakes = append(mistakes, t.wrongAlgorithms()...)
	if t.Secret != "" {
		mistakes = append(mistakes, t.wrongSecret()...)
	}
	if t.JWKSURL != "" {
		if err := wrongKeyURL(t.JWKSURL); err != nil {
			wrong("jwks_url", "%w", err)
		}
	}
	if t.Refresh != 0 && t.JWKSURL == "" {
		wrong("refresh", "is how often jwks_url is read, and there is none; leave it out")
	} else if t.Refresh != 0 && (t.Refresh < minRefresh || t.Refresh > maxRefresh) {
		wrong("refresh", "%v is out of bounds; write a time from 1m to 24h", t.Refresh)
	}
	if t.Leeway < 0 || t.Leeway > maxLeeway {
		wrong("leeway", "%v is out of bounds; write a time of at most 5m", t.Leeway)
	}
	return mistakes
}

func (t Config) hasPublicKeys() bool { return t.KeyFile != "" || t.JWKSFile != "" || t.JWKSURL != "" }

func (t Config) wrongAlgorithms() (mistakes []error) {
	wrong := func(format string, args ...any) {
		mistakes = append(mistakes, fmt.Errorf("tokens.algorithms: "+format, args...))
	}
	for _, a := range t.Algorithms {
		switch {
		case strings.EqualFold(a, "none"):
			wrong("%q would believe everybody; leave it out", a)
		case isSecretive(a) && t.hasPublicKeys():
			wrong("%s is signed with a secret, and the keys here are public: any client could sign; leave it out", a)
		case isPublic(a) && t.Secret != "" && !t.hasPublicKeys():
			wrong("%s is verified with a public key, and here is a secret; leave it out, or give key_file, jwks_file or jwks_url", a)
		case !isSecretive(a) && !isPublic(a):
			wrong("%q is unknown; write some of %s", a, strings.Join(slices.Concat(secretAlgorithms, publicAlgorithms), ", "))
		}
	}
	return mistakes
}

func (t Config) wrongSecret() (mistakes []error) {
	if strings.Contains(t.Secret, "-----BEGIN ") {
		return []error{errors.New("tokens.secret: is a PEM file's text; write the file's name in key_file, with the public key in it")}
	}
	for _, a := range t.methods() {
		if least := secretLength(a); len(t.Secret) < least {
			mistakes = append(mistakes, fmt.Errorf("tokens.secret: is %d bytes; %s needs %d at least, such as openssl rand -base64 64 makes",
				len(t.Secret), a, least))
		}
	}
	return mistakes
}

// uselessAlgorithms says which algorithms have no key, and which keys have no algorithm.
func (t Config) uselessAlgorithms(keys []verifyKey) error {
	var useless []error
	for _, k := range keys {
		if len(k.algorithms) == 0 {
			useless = append(useless, fmt.Errorf("%s: is for none of tokens.algorithms [%s]; add %s, or leave the key out",
				k.from, strings.Join(t.Algorithms, ", "), usualAlgorithm(k.key)))
		}
	}
	for _, a := range t.Algorithms {
		if t.JWKSURL == "" && !slices.ContainsFunc(keys, func(k verifyKey) bool { return slices.Contains(k.algorithms, a) }) {
			useless = append(useless, fmt.Errorf("tokens.algorithms: no key is for %s; leave it out, or add its key", a))
		}
	}
	return errors.Join(useless...)
}

// methods are the algorithms that a token may name at all; which of them a key is for is settled
// key by key.
func (t Config) methods() []string {
	switch {
	case len(t.Algorithms) > 0:
		return t.Algorithms
	case t.Secret != "":
		return []string{usualAlgorithm([]byte(nil))}
	default:
		return publicAlgorithms
	}
}

// wrongKeyURL says why keys cannot be read from an address. An attacker who can change the answer
// can make tokens for any client.
func wrongKeyURL(address string) error {
	u, err := url.Parse(address)
	switch {
	case err != nil:
		return fmt.Errorf("%w; write one such as https://issuer.example/.well-known/jwks.json", err)
	case u.Host == "" || (u.Scheme != "https" && u.Scheme != "http"):
		return fmt.Errorf("%q is not a web address; write one such as https://issuer.example/.well-known/jwks.json", shownURL(address, u))
	case u.Scheme == "http" && !isLoopback(u.Hostname()):
		return fmt.Errorf("%q can be changed on its way; write https (http is for this machine alone)", shownURL(address, u))
	}
	return nil
}

// shownURL is an address for a message: as it is written, since escaping would carry values of
// variables past the mask, but without a user and password.
func shownURL(written string, u *url.URL) string {
	if u.User != nil {
		return u.Scheme + "://" + u.Host
	}
	return written
}

func isLoopback(host string) bool {
	return strings.EqualFold(host, "localhost") || net.ParseIP(host).IsLoopback()
}

// summary says how tokens are verified. It tells no secret.
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
		// The rest of it may hold a password.
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
