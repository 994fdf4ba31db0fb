package echolimit_test

import (
	"io"
	"net"
	"net/http"
	"testing"

	"github.com/labstack/echo/v5"
	"github.com/labstack/echo/v5/middleware"

	"github.com/penstock/penstock/httplimit"
	"github.com/penstock/penstock/httplimit/echolimit"
	"github.com/penstock/penstock/internal/testing/gatetest"
)

func TestEcho(t *testing.T) {
	gatetest.Run(t, func(gate *httplimit.Gate, wait func()) func(net.Listener) error {
		e := echo.New()
		e.Pre(middleware.Recover(), echolimit.Middleware(gate))
		e.POST("/api/rides/request", respond("a car"))
		e.POST("/body", func(c *echo.Context) error {
			c.Response().WriteHeader(http.StatusOK)
			_, err := io.Copy(c.Response(), c.Request().Body)
			return err
		})
		e.GET("/fails", func(c *echo.Context) error { return echo.NewHTTPError(http.StatusBadGateway, "no") })
		e.GET("/panics", func(c *echo.Context) error { panic("as it should") })
		e.GET("/waits", func(c *echo.Context) error { wait(); return nil })
		e.GET("/costs-twice", func(c *echo.Context) error {
			c.Response().Header()["X-Cost"] = []string{"5", "5"}
			return nil
		})
		e.GET("/costs", func(c *echo.Context) error {
			c.Response().Header().Set("X-Cost", "5")
			return c.NoContent(http.StatusOK)
		})
		e.GET("/settles", func(c *echo.Context) error { return httplimit.Settle(c.Request().Context(), 5) })
		e.GET("/files/*", respond("a file"))
		return (&http.Server{Handler: e}).Serve
	})
}

func respond(what string) echo.HandlerFunc {
	return func(c *echo.Context) error { return c.String(http.StatusOK, what) }
}
