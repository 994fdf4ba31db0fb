package main

import (
	"net"
	"net/http"
	"testing"

	"github.com/labstack/echo/v5"

	"github.com/penstock/penstock/examples/internal/demotest"
	"github.com/penstock/penstock/httplimit"
)

func TestEcho(t *testing.T) {
	demotest.Run(t, func(gate *httplimit.Gate, wait func()) func(net.Listener) error {
		e := service(gate)
		e.GET("/fails", func(c *echo.Context) error { return echo.NewHTTPError(http.StatusBadGateway, "no") })
		e.GET("/panics", func(c *echo.Context) error { panic("as it should") })
		e.GET("/waits", func(c *echo.Context) error { wait(); return nil })
		e.GET("/costs", func(c *echo.Context) error {
			c.Response().Header().Set("X-Cost", "5")
			return c.NoContent(http.StatusOK)
		})
		e.GET("/settles", func(c *echo.Context) error { return httplimit.Settle(c.Request(), 5) })
		e.GET("/files/*", respond("a file"))
		return (&http.Server{Handler: e}).Serve
	})
}
