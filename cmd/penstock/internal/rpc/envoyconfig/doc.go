// Package envoyconfig reads the configuration files of envoyproxy/ratelimit. It finds the limit
// that they have for a descriptor, as that service does.
package envoyconfig
