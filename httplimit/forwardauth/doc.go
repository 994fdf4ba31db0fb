// Package forwardauth decides requests for other proxies. A proxy sends it a subrequest for each
// request before it forwards the request: nginx by auth_request, Traefik by ForwardAuth, Caddy by
// forward_auth, Envoy by ext_authz over HTTP, HAProxy by a script in Lua. If the request is
// allowed, the response has status 200.
package forwardauth
