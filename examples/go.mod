// The examples: compiled and run by CI, never tagged.
module github.com/penstock/penstock/examples

go 1.26.0

require github.com/penstock/penstock v0.0.0

require (
	github.com/redis/rueidis v1.0.79 // indirect
	golang.org/x/sys v0.48.0 // indirect
)

replace github.com/penstock/penstock => ../
