// Package httplimit puts limits in front of HTTP handlers, and keeps outbound requests within
// limits.
package httplimit
