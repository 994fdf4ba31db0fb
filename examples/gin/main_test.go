package main

import (
	"errors"
	"net"
	"net/http"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/penstock/penstock/examples/internal/demotest"
	"github.com/penstock/penstock/httplimit"
)

func TestGin(t *testing.T) {
	gin.SetMode(gin.ReleaseMode)
	demotest.Run(t, func(gate *httplimit.Gate, wait func()) func(net.Listener) error {
		router := service(gate)
		router.GET("/fails", func(c *gin.Context) { c.AbortWithError(http.StatusBadGateway, errors.New("no")) })
		router.GET("/panics", func(c *gin.Context) { panic("as it should") })
		router.GET("/waits", func(c *gin.Context) { wait() })
		router.GET("/costs", func(c *gin.Context) { c.Header("X-Cost", "5") })
		router.GET("/settles", func(c *gin.Context) {
			if err := httplimit.Settle(c.Request, 5); err != nil {
				panic(err)
			}
		})
		router.GET("/files/*name", respond("a file"))
		return (&http.Server{Handler: router}).Serve
	})
}
