// Command penstock is a rate limiter for HTTP APIs: a reverse proxy that limits requests, and tools
// to check and explain its policy.
package main

import (
	_ "time/tzdata" // many images have no zone data, and policies name time zones

	_ "golang.org/x/crypto/x509roots/fallback" // for images without CA roots; the host's roots take precedence

	"github.com/penstock/penstock/cmd/penstock/command"
)

func main() { command.Main() }
