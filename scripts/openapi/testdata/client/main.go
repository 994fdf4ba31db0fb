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
	var q check.CheckRequest
	key, cost := "user:generated", int64(2)
	if err := q.FromCheckByRule(check.CheckByRule{Rule: "search", Key: &key, Cost: &cost}); err != nil {
		log.Fatal(err)
	}
	for _, want := range []string{"allowed", "denied"} { // 3 units per minute
		answer, err := c.CheckWithResponse(context.Background(), nil, q)
		switch {
		case err != nil:
			log.Fatal(err)
		case answer.JSON200 == nil:
			log.Fatalf("%s: %s", answer.Status(), answer.Body)
		case string(answer.JSON200.Outcome) != want:
			log.Fatalf("%s; want %s", answer.Body, want)
		}
		fmt.Println("the generated client was", answer.JSON200.Outcome)
	}
}
