package ginlimit_test

import (
	"errors"
	"io"
	"net"
	"net/http"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/penstock/penstock/httplimit"
	"github.com/penstock/penstock/httplimit/ginlimit"
	"github.com/penstock/penstock/internal/testing/gatetest"
)

func TestGin(t *testing.T) {
	gin.SetMode(gin.ReleaseMode)
	gatetest.Run(t, func(gate *httplimit.Gate, wait func()) func(net.Listener) error {
		router := gin.New()
		router.Use(gin.RecoveryWithWriter(io.Discard), ginlimit.Middleware(gate))
		router.POST("/api/rides/request", respond("a car"))
		router.POST("/body", func(c *gin.Context) {
			body, err := c.GetRawData()
			if err != nil {
				panic(err)
			}
			c.Data(http.StatusOK, "text/plain", body)
		})
		router.GET("/fails", func(c *gin.Context) { c.AbortWithError(http.StatusBadGateway, errors.New("no")) })
		router.GET("/panics", func(c *gin.Context) { panic("as it should") })
		router.GET("/waits", func(c *gin.Context) { wait() })
		router.GET("/costs-twice", func(c *gin.Context) { c.Writer.Header()["X-Cost"] = []string{"5", "5"} })
		router.GET("/costs", func(c *gin.Context) { c.Header("X-Cost", "5") })
		router.GET("/settles", func(c *gin.Context) {
			if err := httplimit.Settle(c.Request.Context(), 5); err != nil {
				panic(err)
			}
		})
		router.GET("/files/*name", respond("a file"))
		return (&http.Server{Handler: router}).Serve
	})
}

func respond(what string) gin.HandlerFunc {
	return func(c *gin.Context) { c.String(http.StatusOK, what) }
}
