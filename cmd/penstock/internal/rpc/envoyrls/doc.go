// Package envoyrls answers Envoy's Rate Limit Service protocol (RLS v3) with the limits of
// envoyproxy/ratelimit's configuration files. An [Engine] decides requests. The messages of an
// Engine are plain structs, so that servers with any codec can use it. [Register] adds it to a
// server of grpc-go. [NewHandler] serves it at /json.
package envoyrls
