// Package echov4 puts limits in front of handlers of Echo v4.
package echov4

import (
	"github.com/labstack/echo/v4"

	"github.com/penstock/penstock/httplimit"
)

// Middleware returns Echo middleware that serves the requests that the gate admits. Give it to
// Echo.Pre, after middleware.Recover: then Echo routes by the path that the rules matched.
// httplimit.Settle and httplimit.DecisionOf work in the handlers, with c.Request().Context().
//
// The middleware passes an error of a handler to Echo's HTTPErrorHandler, and then returns nil.
func Middleware(gate *httplimit.Gate) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			admission := gate.Admit(c.Response(), c.Request())
			if admission == nil {
				return nil
			}
			status := 0 // if the handler panics
			defer func() { admission.Done(status) }()
			// Echo v4 routes by the request that its server received, so SetRequest alone would not
			// change the route.
			if received := c.Request().URL; received != admission.Request.URL {
				*received = *admission.Request.URL
			}
			c.SetRequest(admission.Request)
			if err := next(c); err != nil {
				c.Error(err) // handle it here, to know the status
			}
			status = c.Response().Status
			return nil
		}
	}
}
