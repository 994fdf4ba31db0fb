// Package policy decides which limits apply to a request: Rules turn the attributes of a request
// into the charges that they demand. Package policyfile makes Rules of a file; a Spec makes them in
// Go.
package policy
