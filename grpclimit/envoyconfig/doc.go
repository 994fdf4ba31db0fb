// Package envoyconfig reads the configuration files of envoyproxy/ratelimit. Like that service, it
// finds the limit of a descriptor in them.
package envoyconfig
