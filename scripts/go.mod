// What the Makefile runs: a module proxy made of the tree, mutants, the summary of a test run. Never tagged.
module github.com/penstock/penstock/scripts

go 1.26.0

require (
	github.com/penstock/penstock v0.1.0
	github.com/penstock/penstock/grpclimit v0.0.0-00010101000000-000000000000
	golang.org/x/mod v0.41.0
	google.golang.org/grpc v1.85.0
	google.golang.org/protobuf v1.36.12
)

require (
	github.com/MicahParks/jwkset v0.11.3 // indirect
	github.com/fsnotify/fsnotify v1.10.1 // indirect
	github.com/golang-jwt/jwt/v5 v5.3.1 // indirect
	go.yaml.in/yaml/v4 v4.0.0 // indirect
	golang.org/x/net v0.60.0 // indirect
	golang.org/x/sys v0.48.0 // indirect
	golang.org/x/text v0.42.0 // indirect
	golang.org/x/time v0.9.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260817212433-ac3dfec99bb1 // indirect
)

replace github.com/penstock/penstock => ../

replace github.com/penstock/penstock/grpclimit => ../grpclimit
