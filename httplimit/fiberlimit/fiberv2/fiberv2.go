// Package fiberv2 puts limits in front of handlers of Fiber v2.
package fiberv2

import (
	"net/http"

	"github.com/gofiber/fiber/v2"

	"github.com/penstock/penstock/httplimit"
	"github.com/penstock/penstock/httplimit/fiberlimit/internal/fastgate"
)

// Middleware returns a Fiber handler that serves the requests that the gate admits. Use it first,
// after recover.New: then Fiber routes by the path that the rules matched. httplimit.Settle
// works in the handlers, with c.UserContext().
//
// By default, rules distinguish /a from /A and /a/. So set CaseSensitive and StrictRouting in
// fiber.Config. Without them, clients can evade rules by another spelling.
//
// Fiber does not use the requests of net/http. The gate gets a copy of the request, without its
// body. With StreamRequestBody, the size of a body counts only if Content-Length states it.
func Middleware(gate *httplimit.Gate) fiber.Handler {
	return func(c *fiber.Ctx) error {
		err := fastgate.Serve(c.UserContext(), gate, c.Context(), func(r *http.Request) {
			c.Path(r.URL.EscapedPath())
			c.SetUserContext(r.Context())
			if err := c.Next(); err != nil {
				if err := c.App().ErrorHandler(c, err); err != nil { // handle it here, to know the status
					c.Status(fiber.StatusInternalServerError)
				}
			}
		})
		if err != nil {
			return fiber.ErrBadRequest
		}
		return nil
	}
}
