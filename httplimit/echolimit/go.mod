// A module of its own, so that only who uses Echo requires it.
module github.com/penstock/penstock/httplimit/echolimit

go 1.26.0

require (
	github.com/labstack/echo/v5 v5.3.1
	github.com/penstock/penstock v0.1.0
)

require (
	github.com/MicahParks/jwkset v0.11.3 // indirect
	github.com/fsnotify/fsnotify v1.10.1 // indirect
	github.com/golang-jwt/jwt/v5 v5.3.1 // indirect
	go.yaml.in/yaml/v4 v4.0.0 // indirect
	golang.org/x/sys v0.48.0 // indirect
	golang.org/x/time v0.15.0 // indirect
)
