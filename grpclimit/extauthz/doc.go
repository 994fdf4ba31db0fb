// Package extauthz answers Envoy's ext_authz filter over gRPC (envoy.service.auth.v3). It decides
// as package forwardauth does over HTTP: by the same rules, paths and trusted proxies, with the
// same answers (docs/decisions/0020).
package extauthz
