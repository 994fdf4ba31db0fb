// Package forwardauth decides requests for other proxies. A proxy sends a subrequest for each
// request before it forwards the request. nginx does this by auth_request, Traefik by ForwardAuth,
// Caddy by forward_auth, Envoy by ext_authz over HTTP, and HAProxy by a script in Lua. If the
// request is allowed, the response to the subrequest has status 200.
package forwardauth
