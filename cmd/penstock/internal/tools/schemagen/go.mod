// What make schema runs: the JSON Schema of policies, made of the structs. Never tagged.
module github.com/penstock/penstock/cmd/penstock/internal/tools/schemagen

go 1.26.0

require (
	github.com/google/jsonschema-go v0.4.3
	github.com/penstock/penstock v0.1.0
	github.com/penstock/penstock/cmd/penstock v0.0.0
	github.com/santhosh-tekuri/jsonschema/v6 v6.0.3
	go.yaml.in/yaml/v4 v4.0.0
)

require (
	github.com/MicahParks/jwkset v0.11.3 // indirect
	github.com/cncf/xds/go v0.0.0-20260202195803-dba9d589def2 // indirect
	github.com/envoyproxy/go-control-plane/envoy v1.40.0 // indirect
	github.com/envoyproxy/protoc-gen-validate v1.3.3 // indirect
	github.com/fsnotify/fsnotify v1.10.1 // indirect
	github.com/golang-jwt/jwt/v5 v5.3.1 // indirect
	github.com/planetscale/vtprotobuf v0.6.1-0.20240319094008-0393e58bdf10 // indirect
	github.com/redis/rueidis v1.0.79 // indirect
	go.yaml.in/yaml/v2 v2.4.4 // indirect
	golang.org/x/net v0.62.0 // indirect
	golang.org/x/sys v0.49.0 // indirect
	golang.org/x/text v0.43.0 // indirect
	golang.org/x/time v0.9.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260928230214-8a89bd6388cc // indirect
	google.golang.org/grpc v1.85.0 // indirect
	google.golang.org/protobuf v1.36.12 // indirect
)

replace (
	github.com/penstock/penstock => ../../../../../
	github.com/penstock/penstock/cmd/penstock => ../../../
)

replace github.com/penstock/penstock/grpclimit => ../../../../../grpclimit

replace github.com/penstock/penstock/observe/prometheus => ../../../../../observe/prometheus

replace github.com/penstock/penstock/observe/otel => ../../../../../observe/otel
