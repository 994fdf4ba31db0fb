// Package ginlimit puts limits in front of handlers of gin.
package ginlimit

import (
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/penstock/penstock/httplimit"
)

// Middleware returns a gin handler that serves the requests that the gate admits. Use it after
// gin.Recovery. httplimit.Settle and httplimit.DecisionOf work in the handlers, with
// c.Request.Context().
//
// gin chooses the route before the gate decides. If the rules matched another path than gin did,
// such as /a instead of /b/../a, the response is 404. To route by the path that the rules matched,
// use gate.Middleware around the whole engine instead.
func Middleware(gate *httplimit.Gate) gin.HandlerFunc {
	return func(c *gin.Context) {
		admission := gate.Admit(c.Writer, c.Request)
		if admission == nil {
			c.Abort()
			return
		}
		status := 0 // if the handler panics
		defer func() { admission.Done(status) }()
		if admission.Request.URL.Path != c.Request.URL.Path {
			c.AbortWithStatus(http.StatusNotFound)
		}
		c.Request = admission.Request
		c.Next()
		status = c.Writer.Status()
	}
}
