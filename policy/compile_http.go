package policy

import (
	"cmp"
	"mime"
	"net/http"
	"net/url"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"
)

func (c *compiler) http() {
	h := &c.config.HTTP
	r := c.rules
	r.paths = Paths{
		KeepEncodedSlash:    c.oneOf(&h.EncodedSlash, "encoded_slash", "refuse", "keep") == "keep",
		IgnoreTrailingSlash: c.oneOf(&h.TrailingSlash, "trailing_slash", "keep", "ignore") == "ignore",
		IgnoreCase:          c.oneOf(&h.Case, "case", "keep", "ignore") == "ignore",
		StripParameters:     c.oneOf(&h.PathParameters, "path_parameters", "keep", "strip") == "strip",
	}
	r.prefix4 = c.bits(&h.IPv4Prefix, "ipv4_prefix", 8, 32, 32)
	r.prefix6 = c.bits(&h.IPv6Prefix, "ipv6_prefix", 16, 128, 64)
	for i := range h.TrustedProxies {
		text := h.TrustedProxies[i]
		if network, ok := parseNetwork(text); text != "unix" && !ok {
			c.fail(&h.TrustedProxies[i], "%q is not a network; write 10.0.0.0/8, 192.0.2.1, or unix for peers on a unix socket", clip(text))
		} else if ok && network.Bits() == 0 {
			c.fail(&h.TrustedProxies[i], "%s trusts everybody, so any caller could claim any address; name your proxies' networks", text)
		}
	}
	if h.AddressHeader != "" && !token(h.AddressHeader) {
		c.fail(&h.AddressHeader, "%q cannot be the name of a header; write X-Forwarded-For, Forwarded or X-Real-IP", clip(h.AddressHeader))
	}
	if h.AddressHeader != "" && len(h.TrustedProxies) == 0 {
		c.fail(&h.AddressHeader, "no proxy is trusted, so the header is never believed; add trusted_proxies")
	}
	for i := range h.Headers {
		c.oneOf(&h.Headers[i], "headers", "draft-11", "draft-07", "draft-06", "x-ratelimit", "none")
		switch {
		case h.Headers[i] == "none" && len(h.Headers) > 1:
			c.fail(&h.Headers[i], "headers are none and others; keep none alone, or remove it")
		case slices.Contains(h.Headers[:i], h.Headers[i]):
			c.fail(&h.Headers[i], "headers have %s twice; keep one", h.Headers[i])
		case h.Headers[i] == "draft-07" && slices.Contains(h.Headers, "draft-11"):
			c.fail(&h.Headers[i], "draft-11 and draft-07 both write RateLimit, in forms that no client can tell apart; choose one")
		}
	}
	c.oneOf(&h.Reset, "reset", "epoch", "seconds")
	if h.RetryJitter > time.Hour {
		c.fail(&h.RetryJitter, "retry_jitter is %s; the most is 1h", period(h.RetryJitter))
	}
	c.denied(&h.Denied)
	c.cors(&h.CORS)
	if h.MaxWaiting < 0 || h.MaxWaiting > 1_000_000 || h.MaxWaiting == 0 && c.written(&h.MaxWaiting) {
		c.fail(&h.MaxWaiting, "max_waiting is %d; write 1 to 1000000", h.MaxWaiting)
	}
	r.http = *h
	r.http.IPv4Prefix, r.http.IPv6Prefix = r.prefix4, r.prefix6
	r.http.AddressHeader = cmp.Or(http.CanonicalHeaderKey(h.AddressHeader), "X-Forwarded-For")
	r.http.Reset = cmp.Or(h.Reset, "epoch")
	r.http.MaxWaiting = cmp.Or(h.MaxWaiting, 1000)
	r.http.Denied.Status = cmp.Or(h.Denied.Status, 429)
	r.http.Denied.Body = cmp.Or(h.Denied.Body, "problem")
	r.http.Denied.ContentType = cmp.Or(h.Denied.ContentType, "application/json")
	if len(h.Headers) == 0 {
		r.http.Headers = Strings{"draft-11"}
	}
}

func (c *compiler) bits(p *int, what string, least, most, otherwise int) int {
	if *p == 0 && !c.written(p) {
		return otherwise
	}
	if *p < least || *p > most {
		c.fail(p, "%s is %d; write %d to %d", what, *p, least, most)
		return otherwise
	}
	return *p
}

func (c *compiler) denied(d *DeniedConfig) {
	if (d.Status != 0 || c.written(&d.Status)) && (d.Status < 400 || d.Status > 599) {
		c.fail(&d.Status, "the status of a denial is %d; write 429, or another from 400 to 599", d.Status)
	}
	switch {
	case d.Body == "" || d.Body == "problem" || d.Body == "text":
		if d.ContentType != "" {
			c.fail(&d.ContentType, "content_type belongs to a template; remove it")
		}
	case !strings.Contains(d.Body, "{{") && !strings.ContainsAny(d.Body, " \n{<"):
		c.fail(&d.Body, "body is %q; write problem, text, or a template such as '{\"retry_after\":{{.RetryAfter}}}'", clip(d.Body))
	default:
		c.template(&d.Body)
	}
	if mediaType, _, err := mime.ParseMediaType(d.ContentType); d.ContentType != "" && (err != nil || !strings.Contains(mediaType, "/")) {
		c.fail(&d.ContentType, "%q is not a content type; write one such as application/json", clip(d.ContentType))
	}
}

func (c *compiler) cors(h *CORSConfig) {
	for i := range h.Origins {
		text := h.Origins[i]
		switch {
		case text == "*" && len(h.Origins) > 1:
			c.fail(&h.Origins[i], "* is every origin; keep it alone, or remove it")
		case text == "*" && h.Credentials:
			c.fail(&h.Credentials, "any page could act as its visitor: credentials and origins: * exclude each other; name the origins")
		case text == "*":
		case text == "null":
			c.fail(&h.Origins[i], "null is the origin of every sandboxed page, whoever made it; name the origins")
		case !isOrigin(text):
			c.fail(&h.Origins[i], "%q is not an origin as browsers send it; write https://app.example.com, in small letters, with a port only if it is not "+
				"the scheme's own, and without a path", clip(text))
		case slices.Contains(h.Origins[:i], text):
			c.fail(&h.Origins[i], "the origins have %s twice; keep one", text)
		}
	}
	for i := range h.Expose {
		if !token(h.Expose[i]) {
			c.fail(&h.Expose[i], "%q cannot be the name of a header; write one such as X-Request-Id", clip(h.Expose[i]))
		}
	}
	if c.written(h) && len(h.Origins) == 0 {
		c.fail(h, "cors has no origins, so it does nothing; add origins: [https://app.example.com], or remove it")
	}
}

// isOrigin tells whether a browser could send a text as an Origin.
func isOrigin(text string) bool {
	u, err := url.Parse(text)
	if err != nil || u.Scheme == "" || u.Host == "" || u.Scheme+"://"+u.Host != text || text != strings.ToLower(text) || u.Hostname() == "" {
		return false
	}
	if strings.ContainsAny(u.Host, "*%_") || strings.HasSuffix(u.Host, ":") {
		return false
	}
	port := u.Port()
	return !(u.Scheme == "http" && port == "80" || u.Scheme == "https" && port == "443")
}

// server keeps the settings of the service, which judges them itself, and where each stands.
func (c *compiler) server() {
	c.rules.server, c.rules.serverAt = c.config.Server, make(map[string]position)
	v := reflect.ValueOf(&c.config.Server).Elem()
	for name, field := range fieldsOf(v.Type()) {
		if at, ok := c.at[v.Field(field).Addr().Interface()]; ok {
			c.rules.serverAt[name] = at
		}
	}
}

func (c *compiler) tokens() {
	if c.config.Tokens == nil {
		return
	}
	t, dir := c.config.Tokens, filepath.Dir(c.file)
	for _, warning := range t.warnings() {
		c.warn(t, "%s", warning)
	}
	if c.written(&t.Leeway) && t.Leeway == 0 {
		c.fail(&t.Leeway, "the leeway is 0s, and no two clocks agree; write a time from 1ms to 5m, or leave it out for %s", period(tokenLeeway))
	}
	if c.written(&t.Refresh) && t.Refresh == 0 {
		c.fail(&t.Refresh, "the keys would never be read again; write a time from 1m to 24h, or leave it out for %s", period(keyRefresh))
	}
	verifier, err := newVerifier(*t, dir)
	for _, one := range flat(err) {
		c.fail(c.tokenField(one), "%v", one)
	}
	if err == nil {
		c.rules.verifier, c.rules.tokens = verifier, *t
		c.identifyingHeader(verifier.header)
		c.rules.tokens.Secret = "" // the verifier has it; nothing else should
		c.rules.files = append(c.rules.files, t.files(dir)...)
	}
}

// flat is an error as the list of those that were joined in it.
func flat(err error) (list []error) {
	if err == nil {
		return nil
	}
	several, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	for _, one := range several.Unwrap() {
		list = append(list, flat(one)...)
	}
	return list
}

// tokenField is where the field was written of which an error speaks: "tokens.secret: ...".
func (c *compiler) tokenField(err error) any {
	name, _, _ := strings.Cut(strings.TrimPrefix(err.Error(), "tokens."), ":")
	v := reflect.ValueOf(c.config.Tokens).Elem()
	if field, ok := fieldsOf(v.Type())[name]; ok && c.written(v.Field(field).Addr().Interface()) {
		return v.Field(field).Addr().Interface()
	}
	return c.config.Tokens
}
