// Package policyfile reads policies from YAML files, reports every mistake with its position and
// how to correct it, and watches files for changes.
package policyfile
