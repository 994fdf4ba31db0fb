// What the Makefile runs: a module proxy made of the tree, mutants, the summary of a test run. Never tagged.
module github.com/penstock/penstock/scripts

go 1.26.0

require (
	github.com/penstock/penstock v0.0.0-00010101000000-000000000000
	golang.org/x/mod v0.41.0
)

replace github.com/penstock/penstock => ../
