package httplimit

import (
	"cmp"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/fieldvalues"
	"github.com/penstock/penstock/internal/syntax"
	"github.com/penstock/penstock/internal/transport/clientaddress"
	"github.com/penstock/penstock/internal/transport/quotaheaders"
	"github.com/penstock/penstock/internal/wording"
	"github.com/penstock/penstock/policy"
)

// A Config defines how HTTP requests are read and answered. A Config is the section http of a
// policy file. To read policy files with this section, put DefaultConfig() into
// policyfile.Options.Sections. In Go code, the zero value of a field means its default.
type Config struct {
	TrustedProxies []string      `yaml:"trusted_proxies" jsonschema:"Proxies whose address header is used: CIDRs, or unix for peers on a unix socket. Default: none."`
	AddressHeader  string        `yaml:"address_header" jsonschema:"The header in which trusted proxies send the client's address: X-Forwarded-For (default), Forwarded, or one with a single address."`
	IPv4Prefix     int           `yaml:"ipv4_prefix" jsonschema:"IPv4 addresses with this many equal leading bits count as one client. Default: 32."`
	IPv6Prefix     int           `yaml:"ipv6_prefix" jsonschema:"IPv6 addresses with this many equal leading bits count as one client. Default: 64."`
	EncodedSlash   string        `yaml:"encoded_slash" jsonschema:"What happens to paths with %2F or %5C: refuse (default; status 400), or keep."`
	TrailingSlash  string        `yaml:"trailing_slash" jsonschema:"Whether /a/ equals /a: keep (default: they differ), or ignore (the slash is removed)."`
	CaseSensitive  *bool         `yaml:"case_sensitive" jsonschema:"Whether /A and /a differ. Default: true; false makes letters lower case."`
	PathParameters string        `yaml:"path_parameters" jsonschema:"What happens to ;v=1 after a segment: keep (default), or strip."`
	Headers        []string      `yaml:"headers" jsonschema:"Which header fields about limits are sent: draft-11 (default), draft-07, draft-06, x-ratelimit, or none."`
	Reset          string        `yaml:"reset" jsonschema:"What X-RateLimit-Reset means: epoch (default), the time in seconds since 1970, or seconds from now."`
	ResetUntil     string        `yaml:"reset_until" jsonschema:"Which time X-RateLimit-Reset is: next (default), when more is available; or full, when nothing is used any more."`
	RetryJitter    time.Duration `yaml:"retry_jitter" jsonschema:"Lengthens Retry-After by a random time up to this, so that clients do not all return at the same time. Default: 0."`
	Denied         DeniedConfig  `yaml:"denied" jsonschema:"The response to a request over a limit."`
	CORS           *CORSConfig   `yaml:"cors" jsonschema:"Which web pages may read the responses that do not come from the upstream, and the headers about limits. Default: none."`
	MaxWaiting     int           `yaml:"max_waiting" jsonschema:"How many requests may wait at the same time; further ones are denied. Default: 1000."`
}

// A DeniedConfig defines the response to a request over a limit. Requests that are rejected for
// other reasons get other responses.
type DeniedConfig struct {
	Status      int    `yaml:"status" jsonschema:"The status. Default: 429."`
	Body        string `yaml:"body" jsonschema:"problem (default; problem+json, or text for clients that prefer it), text, or a template."`
	ContentType string `yaml:"content_type" jsonschema:"The type of a template's text. Default: application/json."`
}

// A CORSConfig lists the web pages of other origins that may read the gate's own responses.
type CORSConfig struct {
	Origins     []string `yaml:"origins" jsonschema:"The origins of these pages, such as https://app.example.com, or * alone for any."`
	Credentials bool     `yaml:"credentials" jsonschema:"Whether pages may send cookies and other credentials, and still read the response. Not with *. Default: false."`
	Expose      []string `yaml:"expose" jsonschema:"Response headers that pages may read, besides those about limits. Default: none."`
}

// DefaultConfig returns the Config of a policy without a section http.
func DefaultConfig() *Config {
	c := new(Config)
	c.setDefaults()
	return c
}

// SectionName returns the key of the section in a policy file.
func (c *Config) SectionName() string { return "http" }

// Apply reports what is wrong with the Config, and copies its settings of paths, addresses and
// waiting to spec.
func (c *Config) Apply(spec *policy.Spec, report func(field any, format string, args ...any)) {
	c.check(report)
	c.setDefaults()
	c.setSpec(spec)
}

func (c *Config) setSpec(spec *policy.Spec) {
	spec.Paths, spec.MaxWaiting = c.paths(), c.MaxWaiting
	spec.IPv4Prefix, spec.IPv6Prefix = c.IPv4Prefix, c.IPv6Prefix
}

func (c *Config) paths() policy.Paths {
	return policy.Paths{
		KeepEncodedSlash:    c.EncodedSlash == "keep",
		IgnoreTrailingSlash: c.TrailingSlash == "ignore",
		IgnoreCase:          c.CaseSensitive != nil && !*c.CaseSensitive,
		StripParameters:     c.PathParameters == "strip",
	}
}

func configOf(rules *policy.Rules) (*Config, error) {
	c := new(Config)
	if own, ok := policy.SectionOf[*Config](rules); ok {
		*c = *own
	}
	return c, c.finish()
}

// finish sets the defaults of a Config that is made in Go, and returns what is wrong with it.
func (c *Config) finish() error {
	c.setDefaults()
	var errs []error
	c.check(func(_ any, format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) })
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("%w: httplimit: %w", penstock.ErrInvalid, err)
	}
	return nil
}

const (
	defaultIPv4Prefix = 32 // leading bits of an IPv4 address that identify a client
	defaultIPv6Prefix = 64 // leading bits of an IPv6 address that identify a client
)

func (c *Config) setDefaults() {
	c.AddressHeader = http.CanonicalHeaderKey(c.AddressHeader)
	if len(c.TrustedProxies) > 0 {
		c.AddressHeader = cmp.Or(c.AddressHeader, "X-Forwarded-For")
	}
	c.IPv4Prefix, c.IPv6Prefix = cmp.Or(c.IPv4Prefix, defaultIPv4Prefix), cmp.Or(c.IPv6Prefix, defaultIPv6Prefix)
	if len(c.Headers) == 0 {
		c.Headers = []string{quotaheaders.Draft11}
	}
	c.Reset = cmp.Or(c.Reset, "epoch")
	c.ResetUntil = cmp.Or(c.ResetUntil, "next")
	c.MaxWaiting = cmp.Or(c.MaxWaiting, fieldvalues.DefaultMaxWaiting)
	c.Denied.Status = cmp.Or(c.Denied.Status, http.StatusTooManyRequests)
	c.Denied.Body = cmp.Or(c.Denied.Body, "problem")
	if c.Denied.isTemplate() {
		c.Denied.ContentType = cmp.Or(c.Denied.ContentType, "application/json")
	}
}

func (d *DeniedConfig) isTemplate() bool {
	return d.Body != "" && d.Body != "problem" && d.Body != "text"
}

// check reports each mistake of the Config: its field, what is wrong, and how to fix it.
func (c *Config) check(report func(field any, format string, args ...any)) {
	checkWord := func(field *string, key string, words []string) {
		if *field != "" && !slices.Contains(words, *field) {
			report(field, "unknown value %q for %s; there are %s", wording.Clip(*field), key, wording.List(words, "and"))
		}
	}
	checkNumber := func(field *int, key string, bounds fieldvalues.Range) {
		if !bounds.Has(int64(*field)) {
			report(field, "%s is %d; write %v", key, *field, bounds)
		}
	}
	checkWord(&c.EncodedSlash, "encoded_slash", fieldvalues.EncodedSlash)
	checkWord(&c.TrailingSlash, "trailing_slash", fieldvalues.TrailingSlash)
	checkWord(&c.PathParameters, "path_parameters", fieldvalues.PathParameters)
	checkWord(&c.Reset, "reset", fieldvalues.Reset)
	checkWord(&c.ResetUntil, "reset_until", fieldvalues.ResetUntil)
	checkNumber(&c.IPv4Prefix, "ipv4_prefix", fieldvalues.IPv4Prefix)
	checkNumber(&c.IPv6Prefix, "ipv6_prefix", fieldvalues.IPv6Prefix)
	checkNumber(&c.MaxWaiting, "max_waiting", fieldvalues.MaxWaiting)
	switch {
	case c.RetryJitter < 0:
		report(&c.RetryJitter, "retry_jitter is %v; write 0 to 1h", c.RetryJitter)
	case c.RetryJitter > time.Hour:
		report(&c.RetryJitter, "retry_jitter is %s; the most is 1h", wording.Period(c.RetryJitter))
	}
	c.checkProxies(report)
	for i := range c.Headers {
		checkWord(&c.Headers[i], "headers", fieldvalues.Headers)
		switch {
		case c.Headers[i] == quotaheaders.None && len(c.Headers) > 1:
			report(&c.Headers[i], "headers are none and others; keep none alone, or remove it")
		case slices.Contains(c.Headers[:i], c.Headers[i]):
			report(&c.Headers[i], "headers have %s twice; keep one", c.Headers[i])
		case c.Headers[i] == quotaheaders.Draft07 && slices.Contains(c.Headers, quotaheaders.Draft11):
			report(&c.Headers[i], "draft-11 and draft-07 both write RateLimit, in forms that no client can tell apart; choose one")
		}
	}
	c.Denied.check(report)
	if c.CORS != nil {
		c.CORS.check(report)
	}
}

func (c *Config) checkProxies(report func(field any, format string, args ...any)) {
	for i, text := range c.TrustedProxies {
		if text == "unix" {
			continue
		}
		if _, err := clientaddress.ParseNetwork(text); err != nil {
			report(&c.TrustedProxies[i], "%q %v", wording.Clip(text), err)
		}
	}
	if c.AddressHeader != "" && !syntax.IsToken(c.AddressHeader) {
		report(&c.AddressHeader, "%q cannot be the name of a header; write X-Forwarded-For, Forwarded or X-Real-IP", wording.Clip(c.AddressHeader))
	}
	if c.AddressHeader != "" && len(c.TrustedProxies) == 0 {
		report(&c.AddressHeader, "no proxy is trusted, so the header is never used; add trusted_proxies")
	}
}

func (d *DeniedConfig) check(report func(field any, format string, args ...any)) {
	if !fieldvalues.DeniedStatus.Has(int64(d.Status)) {
		report(&d.Status, "the status of a denial is %d; write 429, or another from %v", d.Status, fieldvalues.DeniedStatus)
	}
	switch {
	case !d.isTemplate():
		if d.ContentType != "" {
			report(&d.ContentType, "content_type belongs to a template; remove it")
		}
	case !strings.ContainsAny(d.Body, " \n{<"): // a single word is a misspelled "problem" or "text"
		report(&d.Body, "body is %q; write problem, text, or a template such as '{\"retry_after\":{{.RetryAfter}}}'", wording.Clip(d.Body))
	default:
		if wrong := checkTemplate(d.Body); wrong != "" {
			report(&d.Body, "%s", wrong)
		}
	}
	if d.ContentType != "" && !isContentType(d.ContentType) {
		report(&d.ContentType, "%q is not a content type; write one such as application/json", wording.Clip(d.ContentType))
	}
}

func isContentType(text string) bool {
	mediaType, _, err := mime.ParseMediaType(text)
	return err == nil && strings.Contains(mediaType, "/") && !strings.ContainsAny(text, "\r\n")
}

func (c *CORSConfig) check(report func(field any, format string, args ...any)) {
	for i, text := range c.Origins {
		switch {
		case text == "*" && len(c.Origins) > 1:
			report(&c.Origins[i], "* is every origin; keep it alone, or remove it")
		case text == "*" && c.Credentials:
			report(&c.Credentials, "credentials cannot be combined with origin \"*\": any page could send its visitor's cookies and read the response; name the origins")
		case text == "*":
		case text == "null":
			report(&c.Origins[i], "null is the origin of every sandboxed page, of any author; name the origins")
		case !isOrigin(text):
			report(&c.Origins[i], "%q is not an origin as browsers send it; write https://app.example.com, in lower case, with a port only if it is not "+
				"the default of the scheme, and without a path", wording.Clip(text))
		case slices.Contains(c.Origins[:i], text):
			report(&c.Origins[i], "the origins have %s twice; keep one", text)
		}
	}
	for i, name := range c.Expose {
		if !syntax.IsToken(name) {
			report(&c.Expose[i], "%q cannot be the name of a header; write one such as X-Request-Id", wording.Clip(name))
		}
	}
	if len(c.Origins) == 0 {
		report(c, "cors has no origins, so it does nothing; add origins: [https://app.example.com], or remove it")
	}
}

// isOrigin reports whether a browser could send a text as an Origin.
func isOrigin(text string) bool {
	u, err := url.Parse(text)
	if err != nil || u.Scheme == "" || u.Hostname() == "" {
		return false
	}
	if text != u.Scheme+"://"+u.Host || text != strings.ToLower(text) {
		return false
	}
	if strings.ContainsAny(u.Host, "*%_") || strings.HasSuffix(u.Host, ":") {
		return false
	}
	isDefaultPort := u.Scheme == "http" && u.Port() == "80" || u.Scheme == "https" && u.Port() == "443"
	return !isDefaultPort // browsers leave it out
}

// Describe describes in words how requests are read and answered; see package describe.
func (c *Config) Describe(line func(label string, texts ...string)) {
	if len(c.TrustedProxies) > 0 {
		line("proxies", c.AddressHeader+" is used from "+wording.ShortList(c.TrustedProxies, "and"))
	}
	denial := fmt.Sprintf("status %d, %s", c.Denied.Status, c.Denied.Body)
	if c.Denied.isTemplate() {
		denial = fmt.Sprintf("status %d, a template of %s", c.Denied.Status, wording.Plain(c.Denied.ContentType))
	}
	if c.RetryJitter > 0 {
		denial += ", Retry-After up to " + wording.Period(c.RetryJitter) + " longer"
	}
	line("denial", denial)
	headers := wording.List(c.Headers, "and")
	if slices.Contains(c.Headers, quotaheaders.XRateLimit) {
		reset := "seconds from now"
		if c.Reset == "epoch" {
			reset = "seconds since 1970"
		}
		headers += ", whose reset is "
		if c.ResetUntil == "full" {
			headers += "when nothing is used any more, "
		}
		headers += "in " + reset
	}
	line("headers", headers)
	if c.CORS != nil {
		line("cors", c.CORS.text())
	}
	line("waiting", fmt.Sprintf("at most %d requests at once", c.MaxWaiting))
}

func (c *CORSConfig) text() string {
	pages := "pages of " + wording.ShortList(c.Origins, "and")
	if slices.Equal(c.Origins, []string{"*"}) {
		pages = "any page"
	}
	credentials := ", without credentials"
	if c.Credentials {
		credentials = ", with credentials"
	}
	return "the gate's own responses may be read by " + pages + credentials
}
