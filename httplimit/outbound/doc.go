// Package outbound keeps outbound HTTP requests within limits: those of a Limiter, and those that
// servers announce in their responses.
package outbound
