//go:build checks

package recipes

import (
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock/scripts/internal/process"
)

// policyWithStatus sets another status of denials.
const policyWithStatus = `
http: {trusted_proxies: [127.0.0.1], denied: {status: 420}}
deny: {header X-Api-Key: banned}
rules: [{name: all, match: {path: /limited}, per: ip, limits: [{rate: 1/h}]}]
`

// With denied.status, clients of nginx that are over a limit get 429. With the change that a
// comment of the recipe describes, they get the status of the policy.
func TestDeniedStatusInNginx(t *testing.T) {
	program, dir, app := programOf(t, "nginx"), publicDir(t), startApp(t)
	config := dir + "/status.yaml"
	process.WriteFile(t, config, policyWithStatus)
	penstock := process.Serve(t, "--api=127.0.0.1:0", "--config="+config)
	recipe := recipes[slices.IndexFunc(recipes, func(r recipe) bool { return r.program == "nginx" })]
	recipe.makeLenient = func(text string) string { return strings.Replace(text, "return 429", "return 420", 1) }
	for number, status := range []string{"429", "420"} {
		r := newRow(t, recipe, app, number+1)
		r.isLenient = status == "420" // the recipe is changed
		r.start(dir, program, penstock)
		for i, want := range []string{"200", status} {
			got := r.send("GET", "/limited", "shop.example").status
			r.expect(got == want, "request %d with denied.status: 420 got %s; want %s", i+1, got, want)
		}
		banned := r.send("GET", "/limited", "shop.example", "X-Api-Key", "banned").status
		r.expect(banned == "403", "a client on the deny list got %s; want 403", banned)
	}
}
