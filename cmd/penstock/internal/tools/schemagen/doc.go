// Package schemagen has only tests. They generate three JSON Schemas: of policy files, of the case
// files of penstock test, and of the Helm chart's values. Run make schema to write them.
package schemagen
