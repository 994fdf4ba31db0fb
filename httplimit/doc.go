// Package httplimit puts limits in front of HTTP handlers.
package httplimit
