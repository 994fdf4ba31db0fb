// Package policyfile reads policies from YAML files, and watches the files for changes. It reports
// every mistake with its position and how to fix it.
package policyfile
