// A module of its own, so that only who uses Echo requires it. It has packages for Echo v4 and v5.
module github.com/penstock/penstock/httplimit/echolimit

go 1.26.0

require (
	github.com/labstack/echo/v4 v4.16.4
	github.com/labstack/echo/v5 v5.3.1
	github.com/penstock/penstock v0.1.0
)

require (
	github.com/MicahParks/jwkset v0.11.3 // indirect
	github.com/fsnotify/fsnotify v1.10.1 // indirect
	github.com/golang-jwt/jwt/v5 v5.3.1 // indirect
	github.com/labstack/gommon v0.5.0 // indirect
	github.com/mattn/go-colorable v0.1.15 // indirect
	github.com/mattn/go-isatty v0.0.22 // indirect
	github.com/valyala/bytebufferpool v1.0.0 // indirect
	github.com/valyala/fasttemplate v1.2.2 // indirect
	go.yaml.in/yaml/v4 v4.0.0 // indirect
	golang.org/x/crypto v0.57.0 // indirect
	golang.org/x/net v0.60.0 // indirect
	golang.org/x/sys v0.48.0 // indirect
	golang.org/x/text v0.42.0 // indirect
	golang.org/x/time v0.15.0 // indirect
)
