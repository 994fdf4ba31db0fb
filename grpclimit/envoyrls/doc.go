// Package envoyrls answers Envoy's Rate Limit Service protocol (RLS v3) with the limits of
// envoyproxy/ratelimit's configuration files.
//
// An [Engine] decides requests. It knows no gRPC: its messages are plain structs, so that servers
// with another codec can use it. [Register] puts it behind a server of grpc-go, and [NewHandler]
// behind POST /json.
package envoyrls
