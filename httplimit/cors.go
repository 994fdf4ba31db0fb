package httplimit

import (
	"net/http"
	"slices"
	"strings"

	"github.com/penstock/penstock/internal/transport/quotaheaders"
)

// cors defines which web pages may read responses. If it is nil, none may.
type cors struct {
	origins            []string // whose pages may read responses; "*" alone means every origin
	canSendCredentials bool     // pages may send cookies, and still read the response
	expose             []string // Access-Control-Expose-Headers, as http.Header holds its one value
}

const (
	headerAllowOrigin      = "Access-Control-Allow-Origin"
	headerAllowCredentials = "Access-Control-Allow-Credentials"
	headerExpose           = "Access-Control-Expose-Headers"
)

func newCORS(c *CORSConfig, dialects []string) *cors {
	if c == nil {
		return nil
	}
	expose := slices.Clone(c.Expose)
	add := func(names ...string) {
		for _, name := range names {
			if !slices.ContainsFunc(expose, func(known string) bool { return strings.EqualFold(known, name) }) {
				expose = append(expose, name)
			}
		}
	}
	for _, d := range dialects {
		add(quotaheaders.FieldNames(d)...)
	}
	add("Retry-After")
	return &cors{origins: c.Origins, canSendCredentials: c.Credentials, expose: []string{strings.Join(expose, ", ")}}
}

// origin returns the value for Access-Control-Allow-Origin, or "" if the page may not read
// responses.
func (c *cors) origin(r *http.Request) string {
	if c == nil {
		return ""
	}
	switch values := r.Header["Origin"]; {
	case len(values) != 1:
		return ""
	case c.origins[0] == "*":
		return "*"
	case slices.Contains(c.origins, values[0]):
		return values[0]
	}
	return ""
}

// allowOrigin sets the headers of a response that does not come from the upstream.
func (c *cors) allowOrigin(h http.Header, r *http.Request) {
	if c == nil {
		return
	}
	if c.origins[0] != "*" {
		h.Add("Vary", "Origin")
	}
	origin := c.origin(r)
	if origin == "" {
		return
	}
	h[headerAllowOrigin] = []string{origin}
	if c.canSendCredentials {
		h[headerAllowCredentials] = []string{"true"}
	}
	c.exposeHeaders(h, r)
}

// exposeHeaders exposes the headers about limits. The upstream decides whether a page may read its
// response.
func (c *cors) exposeHeaders(h http.Header, r *http.Request) {
	if c.origin(r) != "" {
		h[headerExpose] = c.expose[:1:1] // an append to it makes a copy
	}
}

// AllowOrigin sets the CORS headers of a response that does not come from the upstream, as
// http.cors of the policy defines. A proxy calls it before it sends a response of its own. The
// Gate's own responses have these headers already.
func (g *Gate) AllowOrigin(h http.Header, r *http.Request) { g.current().cors.allowOrigin(h, r) }
