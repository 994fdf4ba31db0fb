// Command client calls the check API. It uses a client that was generated from the OpenAPI file
// into package check.
package main

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"os"

	"client/check"
)

func main() {
	c, err := check.NewClientWithResponses(os.Args[1], check.WithRequestEditorFn(func(_ context.Context, r *http.Request) error {
		r.Header.Set("Authorization", "Bearer "+os.Args[2])
		return nil
	}))
	if err != nil {
		log.Fatal(err)
	}
	var request check.CheckRequest
	key, cost := "user:generated", int64(2)
	if err := request.FromCheckByRule(check.CheckByRule{Rule: "search", Key: &key, Cost: &cost}); err != nil {
		log.Fatal(err)
	}
	// The limit is 3 units per minute, so the second check with a cost of 2 is denied.
	for _, want := range []string{"allowed", "denied"} {
		response, err := c.CheckWithResponse(context.Background(), nil, request)
		switch {
		case err != nil:
			log.Fatal(err)
		case response.JSON200 == nil:
			log.Fatalf("the check got status %s with the body %s; want 200", response.Status(), response.Body)
		case string(response.JSON200.Outcome) != want:
			log.Fatalf("the check got %s; want the outcome %q", response.Body, want)
		}
		fmt.Println("the generated client was", response.JSON200.Outcome)
	}
}
