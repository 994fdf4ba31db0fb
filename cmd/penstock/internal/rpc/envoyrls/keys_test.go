package envoyrls_test

import (
	"fmt"
	"testing"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/cmd/penstock/internal/rpc/envoyconfig"
	"github.com/penstock/penstock/cmd/penstock/internal/rpc/envoyrls"
)

// KeyLimits finds a limit by the key of an event, such as a denial. In this test, the text of a
// limit has its rule, its name, its key, its capacity, and whether it is a shadow.
func TestKeyOfAnEventFindsItsLimit(t *testing.T) {
	const yaml = `
domain: d~|=
descriptors:
- key: user
  rate_limit: {unit: minute, requests_per_unit: 3}
  descriptors:
  - key: path
    value: /a*
    share_threshold: true
    rate_limit: {unit: hour, requests_per_unit: 10}
- key: zero
  rate_limit: {unit: day, requests_per_unit: 0}
- key: free
  rate_limit: {unlimited: true}
- key: quiet
  shadow_mode: true
  rate_limit: {unit: day, requests_per_unit: 2}
`
	config, err := envoyconfig.Load([]envoyconfig.File{{Name: "a.yaml", Content: []byte(yaml)}}, envoyconfig.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{
		"d~0~1~2|user=a~1b":          "d~|=.user minute d~0~1~2|user=a~1b 3 false",
		"d~0~1~2|user=a|path=/abc":   "d~|=.user.path_/a* hour d~0~1~2|user=a|path=/a* 10 false",
		"d~0~1~2|user=a|path=/a*":    "d~|=.user.path_/a* hour d~0~1~2|user=a|path=/a* 10 false",
		"d~0~1~2|quiet=":             "d~|=.quiet day d~0~1~2|quiet= 2 true",
		"d~0~1~2|zero=1":             "",
		"d~0~1~2|free=1":             "",
		"d~0~1~2|none=1":             "",
		"d~0~1~2|user=a|path=/b":     "",
		"d~0~1~2|user=a|path=/a|c=d": "",
		"d~0~1~2":                    "",
		"d~0~1~2|user":               "",
		"other|user=a":               "",
		"key:abc":                    "",
		"":                           "",
		"|":                          "",
	} {
		found, err := envoyrls.KeyLimits(config, envoyrls.Options{Algorithm: penstock.FixedWindow}, key)
		got := ""
		for _, l := range found {
			got = fmt.Sprint(l.Rule, " ", l.Limit, " ", l.Key, " ", l.Plan.Capacity(), " ", l.IsShadow)
		}
		if got != want || err != nil {
			t.Errorf("the limit of key %q is %q, %v; want %q", key, got, err, want)
		}
	}
}
