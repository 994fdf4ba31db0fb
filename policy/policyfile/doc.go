// Package policyfile reads policies from YAML files, and watches the files for changes. Every
// mistake is reported with its position and how to fix it.
package policyfile
