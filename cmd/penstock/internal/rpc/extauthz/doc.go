// Package extauthz serves Envoy's ext_authz filter over gRPC (envoy.service.auth.v3). It decides
// like package forwardauth over HTTP: with the same rules, paths, trusted proxies and responses
// (docs/decisions/0022).
package extauthz
