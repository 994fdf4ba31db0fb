package cache

import (
	"errors"
	"testing"
)

func TestResultsAreComputedOnceAndBounded(t *testing.T) {
	const most = 10
	c := Cache[int, int]{Max: most}
	computed := 0
	double := func(n int) (int, error) {
		computed++
		return 2 * n, nil
	}
	for i := range 3 * most {
		for range 2 {
			if got, err := c.Get(i, double); got != 2*i || err != nil {
				t.Fatalf("the result for %d is %d, %v; want %d", i, got, err, 2*i)
			}
		}
		if computed != i+1 {
			t.Fatalf("%d results for %d keys were computed; want each once", computed, i+1)
		}
		if n := c.Len(); n != min(i+1, most) {
			t.Fatalf("after %d keys, the cache has %d results; want at most %d", i+1, n, most)
		}
	}
}

func TestErrorsAreNotKept(t *testing.T) {
	c := Cache[string, int]{Max: 1}
	fault := errors.New("fault")
	if _, err := c.Get("a", func(string) (int, error) { return 0, fault }); err != fault || c.Len() != 0 {
		t.Errorf("Get returns %v, and the cache has %d results; want the error and none", err, c.Len())
	}
	if got, err := c.Get("a", func(string) (int, error) { return 1, nil }); got != 1 || err != nil {
		t.Errorf("after an error, Get returns %d, %v; want 1", got, err)
	}
}
