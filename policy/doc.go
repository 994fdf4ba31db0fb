// Package policy decides which limits apply to a request. Rules turn the attributes of a request
// into charges. Package policyfile makes Rules from a file. Go code makes them from a Spec.
package policy
