// Package echolimit puts limits in front of handlers of Echo v5. Package echov4, in the same
// module, is for Echo v4. Programs compile only the version that they import.
package echolimit

import (
	"github.com/labstack/echo/v5"

	"github.com/penstock/penstock/httplimit"
)

// Middleware returns Echo middleware that serves the requests that the gate admits. Give it to
// Echo.Pre, after middleware.Recover: then Echo routes by the path that the rules matched.
// httplimit.Settle and httplimit.DecisionOf work in the handlers, with c.Request().Context().
func Middleware(gate *httplimit.Gate) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c *echo.Context) error {
			admission := gate.Admit(c.Response(), c.Request())
			if admission == nil {
				return nil
			}
			status := 0 // if the handler panics
			defer func() { admission.Done(status) }()
			c.SetRequest(admission.Request)
			err := next(c)
			_, status = echo.ResolveResponseStatus(c.Response(), err)
			return err
		}
	}
}
