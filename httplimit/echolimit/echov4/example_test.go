package echov4_test

import (
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/httplimit"
	"github.com/penstock/penstock/httplimit/echolimit/echov4"
	"github.com/penstock/penstock/memstore"
)

func ExampleMiddleware() {
	// The clock does not run, so that the example prints the same every time. Leave Now out.
	store := memstore.New(memstore.Options{Now: func() time.Time { return time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC) }})
	gate, err := httplimit.PerKey(store, "api", penstock.PerMinute(2), httplimit.ByAddress)
	if err != nil {
		log.Fatal(err)
	}
	e := echo.New()
	e.Pre(middleware.Recover(), echov4.Middleware(gate))
	e.GET("/", func(c echo.Context) error { return c.String(http.StatusOK, "hello") })
	for range 3 {
		w := httptest.NewRecorder()
		e.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
		fmt.Printf("%d, Retry-After: %q\n", w.Code, w.Header().Get("Retry-After"))
	}
	// Output:
	// 200, Retry-After: ""
	// 200, Retry-After: ""
	// 429, Retry-After: "30"
}
