package envoyrls_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/penstock/penstock/cmd/penstock/internal/rpc/envoyconfig"
	"github.com/penstock/penstock/cmd/penstock/internal/rpc/envoyrls"
	"github.com/penstock/penstock/memstore"
)

// migrated returns the policy that is made of one of Envoy's files.
func migrated(t *testing.T, yaml string) string {
	t.Helper()
	config, err := envoyconfig.Load([]envoyconfig.File{{Name: "limits.yaml", Content: []byte(yaml)}}, envoyconfig.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return config.Policy()
}

// The policy that is made of Envoy's files decides like the files.
func TestAMigratedPolicyDecidesLikeItsFiles(t *testing.T) {
	const yaml = `
domain: d
descriptors:
- {key: user, rate_limit: {unit: minute, requests_per_unit: 5}}
- {key: user, value: big, rate_limit: {unit: minute, requests_per_unit: 20}}
- {key: user, value: free, rate_limit: {unlimited: true}}
- {key: user, value: bad, rate_limit: {unit: day}}
- {key: shadow, shadow_mode: true, rate_limit: {unit: week, requests_per_unit: 2}}
- key: path
  value: /a$b
  descriptors:
  - {key: user, rate_limit: {unit: month, requests_per_unit: 7}}
  - {key: user, value: big, rate_limit: {unit: year, requests_per_unit: 9}}
- {key: all, value: '*', share_threshold: true, rate_limit: {unit: hour, requests_per_unit: 30}}
`
	text := migrated(t, yaml)
	for line := range strings.Lines(text) {
		if !strings.Contains(line, "/a$") {
			continue
		}
		isComment := strings.HasPrefix(strings.TrimSpace(line), "#")
		isDoubled := strings.Contains(line, "$$")
		if isDoubled == isComment {
			t.Errorf("the policy has the line %q; want $$ in values only", line)
		}
	}
	rules := loadRules(t, text)
	synctest.Test(t, func(t *testing.T) {
		files := newFixture(t, memstore.New(memstore.Options{}), yaml, envoyrls.Options{})
		byPolicy := newFixture(t, memstore.New(memstore.Options{}), "domain: other", envoyrls.Options{Policy: rules})
		random := rand.New(rand.NewPCG(1, 2))
		descriptors := []string{"user=%s", "user=%s", "path=/a$b user=%s", "shadow=%s", "all=%s", "other=%s"}
		over := 0
		for i := range 3000 {
			var all []string
			for range 1 + random.IntN(3) {
				descriptor := fmt.Sprintf(descriptors[random.IntN(len(descriptors))], []string{"big", "free", "bad", "1", "2", "3", "4"}[random.IntN(7)])
				if descriptor == "path=/a$b user=bad" {
					continue // a policy checks its deny list first
				}
				all = append(all, descriptor)
			}
			if len(all) == 0 {
				continue
			}
			text := strings.Join(all, ",")
			want, _, _ := strings.Cut(files.send(text), ":") // ok or over
			got, _, _ := strings.Cut(byPolicy.send(text), ":")
			if got != want {
				t.Fatalf("request %d, %q, is %q by the policy; want %q as by the files", i, text, got, want)
			}
			over += strings.Count(want, "over")
		}
		if over < 100 || over > 2900 {
			t.Errorf("%d of 3000 requests are over; want between 100 and 2900, so that both cases are tested", over)
		}
	})
}

// The policy is valid even if the files contain special characters or long names.
func TestAMigratedPolicyIsValid(t *testing.T) {
	for _, yaml := range []string{
		limits, "domain: d", "domain: 'a b ${X} $'\ndescriptors: [{key: 'k k', rate_limit: {unit: day}}, {key: \"\\n\", value: \"a\\n# b\", rate_limit: {unit: day}}]",
		"domain: d\ndescriptors: [{key: domain, rate_limit: {unit: day, requests_per_unit: 1}}, {key: a*, rate_limit: {unit: day, requests_per_unit: 1}}]",
		"domain: d\ndescriptors: [{key: a, descriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 1}}]}]",
		"domain: d\ndescriptors: [{key: ÄÖ, rate_limit: {unit: year, requests_per_unit: 4294967295}}, {key: äö, value: 'x\"}', rate_limit: {unit: second, requests_per_unit: 1}}]",
		"domain: d\ndescriptors: [{key: first_of, rate_limit: {unit: day, requests_per_unit: 1}}, {key: " + strings.Repeat("k", 99) + ", rate_limit: {unit: day, requests_per_unit: 1}}, {key: " +
			strings.Repeat("k", 99) + "l, rate_limit: {unit: day, requests_per_unit: 1}}, {key: FIRST_of, descriptors: [{key: 1, rate_limit: {unit: day, requests_per_unit: 1}}]}]",
	} {
		func() {
			defer func() {
				if t.Failed() {
					t.Logf("of the files\n%s\nthe policy is\n%s", yaml, migrated(t, yaml))
				}
			}()
			loadRules(t, migrated(t, yaml))
		}()
	}
}
