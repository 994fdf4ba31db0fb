// Package envoyconfig reads the configuration files of envoyproxy/ratelimit, and finds the limit of
// a descriptor in them, as that service does.
package envoyconfig
