module github.com/penstock/penstock

go 1.26.0

require (
	github.com/MicahParks/jwkset v0.11.3
	github.com/dunglas/httpsfv v1.1.2
	github.com/fsnotify/fsnotify v1.10.1
	github.com/golang-jwt/jwt/v5 v5.3.1
	github.com/redis/rueidis v1.0.79
	go.yaml.in/yaml/v4 v4.0.0
)

// Only tests need these.
require (
	github.com/anishathalye/porcupine v1.3.1
	pgregory.net/rapid v1.3.0
)

require (
	golang.org/x/sys v0.48.0 // indirect
	golang.org/x/time v0.9.0 // indirect
)
