// Package policy turns a file that people write into rules, and a request into the charges that the
// rules demand.
package policy
