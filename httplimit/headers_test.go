package httplimit

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/fieldvalues"
)

func TestHeaderSettingsAreChecked(t *testing.T) {
	for _, c := range []struct {
		config Config
		want   string
	}{
		{Config{Headers: []string{"draft-08"}}, `unknown value "draft-08" for headers; there are draft-11, draft-07, draft-06, x-ratelimit and none`},
		{Config{Headers: []string{"draft-06", "draft-06"}}, "headers have draft-06 twice"},
		{Config{Headers: []string{"draft-07", "x-ratelimit", "draft-11"}}, "choose one"},
		{Config{Headers: []string{"none", "draft-11"}}, "keep none alone"},
		{Config{RetryJitter: -1}, "write 0 to 1h"},
		{Config{RetryJitter: math.MaxInt64}, "the most is 1h"},
	} {
		if err := c.config.finish(); !errors.Is(err, penstock.ErrInvalid) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: the error is %v; want one with %q", c.config, err, c.want)
		}
	}
	for _, d := range fieldvalues.Headers[:4] {
		config := Config{Headers: []string{d}, RetryJitter: time.Hour}
		if err := config.finish(); err != nil {
			t.Errorf("%s: the error is %v; want no error", d, err)
		}
	}
}
