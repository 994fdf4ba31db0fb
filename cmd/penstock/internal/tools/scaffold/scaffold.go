// Package scaffold writes a first policy, for penstock init.
package scaffold

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/wording"
)

// Options are what the policy limits.
type Options struct {
	Per  string // ip, global, or header NAME; "": the API key in rules whose operations need it, or else ip
	Rate string // of each client and rule, such as 100/min

	OpenAPI     string // the name of a file in OpenAPI 3, or ""
	OpenAPIText []byte // the content of that file
}

// Write returns the text of a policy, which validate --strict accepts. The notes tell the user what
// the rules do not match. Each is one line.
func Write(o Options) (text string, notes []string, err error) {
	if _, err := penstock.ParseRate(o.Rate); err != nil {
		return "", nil, fmt.Errorf("%w --rate: %w", ErrOption, err)
	}
	d := &description{}
	if o.OpenAPI != "" {
		if d, err = readOpenAPI(o.OpenAPI, o.OpenAPIText); err != nil {
			return "", nil, err
		}
	}
	var groups []*group
	if o.OpenAPI != "" {
		groups = makeGroups(d.operations)
	}
	keyHeader := d.keyHeader
	if !slices.ContainsFunc(groups, (*group).hasRuleByKey) {
		keyHeader = ""
	}
	header, per, err := identityOf(o.Per, keyHeader)
	if err != nil {
		return "", nil, err
	}
	w := writer{rate: o.Rate, per: per, perWithoutKey: per, names: make(map[string]int), logins: make(map[string]bool)}
	if o.Per == "" {
		w.perWithoutKey, w.keyHeader = "ip", d.keyHeader
	}
	w.line("# A first policy, written by penstock init. Change it, then check it and run it:")
	w.line("#")
	w.line("#   penstock validate --strict FILE")
	w.line("#   penstock serve --config FILE --upstream http://localhost:3000")
	w.line("#   penstock explain --config FILE /path      shows which limits apply to a request")
	w.line("#   penstock test FILE CASES                  tests the policy in CI")
	w.line("#")
	w.line("# Instances share their counters if serve has --store redis://HOST:6379.")
	w.line("")
	w.warnOfOtherServers(d)
	if bases := d.requiredBases(); len(bases) > 0 {
		notes = append(notes, w.explainBases(d, bases))
	}
	if o.Per == "" {
		w.explainTokens(d.tokens)
	}
	w.writeIdentity(header)
	if o.OpenAPI == "" {
		w.line("rules:")
		w.line("  # All requests. A rule with a path is more specific, and takes the place of this one:")
		w.line("  # match: {method: POST, path: /login}")
		w.writeRule("all", "", nil, w.per)
	} else {
		w.line("apply: most-specific   # one rule for each request; a rule with always: true applies too")
		w.line("")
		w.line("rules:   # requests that no rule matches are not limited")
		w.writeGroups(groups)
	}
	w.line("")
	w.line("http:")
	w.line("  # Write what your server does, or clients evade a rule by another spelling of its path.")
	w.line("  case_sensitive: true   # /Users is another path than /users")
	w.line("  trailing_slash: keep   # /users/ is another path than /users; ignore: the same")
	w.line("  # trusted_proxies: [10.0.0.0/8]   # load balancers whose X-Forwarded-For has the client's address")
	return w.text.String(), notes, nil
}

const maxListed = 5 // names in one comment

var headerName = regexp.MustCompile(`^[A-Za-z0-9-]{1,100}$`)

func isHeader(name string) bool {
	return headerName.MatchString(name) && !strings.EqualFold(name, "Host")
}

// ErrOption is wrapped by the errors for a wrong value of Per or Rate. Their text is the text of
// ErrOption, the name of the flag, and what is wrong.
var ErrOption = errors.New("a bad value for")

// identityOf reads Options.Per. It returns the identity that the rules limit, and the header that
// names the client, or "".
func identityOf(per, keyHeader string) (header, identity string, err error) {
	switch {
	case per == "" && keyHeader != "":
		return keyHeader, "client", nil
	case per == "" || per == "ip":
		return "", "ip", nil
	case per == "global":
		return "", "global", nil
	}
	name, ok := strings.CutPrefix(per, "header ")
	if name = strings.TrimSpace(name); !ok || !isHeader(name) {
		return "", "", fmt.Errorf("%w --per: %.60q; write ip, global, or the header with an API key, as in 'header X-API-Key'", ErrOption, per)
	}
	return name, "client", nil
}

type writer struct {
	text      strings.Builder
	rate, per string

	perWithoutKey string          // per of rules with an operation that does not need the API key
	keyHeader     string          // header of the API key, or "" if the rules do not depend on it
	logins        map[string]bool // methods and patterns of the rules for logins
	names         map[string]int  // how many rules have this name, or this name with a number
}

func (w *writer) line(text string) { w.text.WriteString(text + "\n") }

// warnOfOtherServers warns in a comment if the rules do not match the paths of all servers.
func (w *writer) warnOfOtherServers(d *description) {
	if len(d.otherBases) == 0 {
		return
	}
	list := make([]string, 0, maxListed)
	for _, base := range d.otherBases[:min(len(d.otherBases), maxListed)] {
		list = append(list, wording.Clip(base+"/"))
	}
	w.line(fmt.Sprintf("# WARNING: the rules match only the first %d paths of servers in the description. Requests for others are not limited,", len(d.bases)))
	w.line("# such as " + strings.Join(list, ", ") + ". Add those that reach Penstock.")
	w.line("")
}

// explainBases explains in a comment that the paths of the rules begin with the path of a server,
// and returns the same on one line. required has the indexes in d.bases of these paths of servers.
func (w *writer) explainBases(d *description, required []int) (note string) {
	list := make([]string, 0, len(required))
	w.line("# The paths of these rules begin with the path of a server in the description:")
	for _, i := range required {
		base, url := wording.Clip(d.bases[i]), fmt.Sprintf("%.200q", d.baseURLs[i])
		w.line("#   " + base + " of the server " + url)
		list = append(list, base+" of the server "+url)
	}
	w.line("# Requests without this beginning are not limited. If your upstream sees such requests, as when a load balancer removes it,")
	w.line("# change the server's url to / in the description and run init again, or remove it from the paths of the rules.")
	w.line("")
	return "the paths of the rules begin with " + wording.List(list, "or") + ", and requests without this beginning are not limited; " +
		"if your upstream sees such requests, change the server's url to / in the description and run init again"
}

// explainTokens explains in a comment how to limit users instead of addresses.
func (w *writer) explainTokens(schemes []string) {
	if len(schemes) == 0 {
		return
	}
	list := make([]string, 0, len(schemes))
	for _, name := range schemes {
		list = append(list, fmt.Sprintf("%.60q", name))
	}
	w.line("# Clients send tokens: " + strings.Join(list, ", ") + " in securitySchemes. Penstock must verify them before it can limit each user.")
	w.line("# If they are JWTs, add the lines below with the values of the issuer, and replace per: ip in the rules.")
	w.line("#")
	w.line("#   tokens:")
	w.line("#     jwks_url: https://login.example.com/.well-known/jwks.json")
	w.line("#     issuer: https://login.example.com")
	w.line("#     audience: api")
	w.line("#")
	w.line("#   per: {first_of: [{user: claim sub}, ip]}")
	w.line("")
}

// writeIdentity writes the identity client, which a header names. It writes nothing if it is "".
func (w *writer) writeIdentity(header string) {
	if header == "" {
		return
	}
	w.line("identities:")
	w.line("  client:                          # the key, or else the address")
	w.line("    first_of:")
	w.line("      - key: header " + header)
	w.line("      - ip")
	w.line("")
}

func (w *writer) writePartRule(name string, patterns []string, p part) {
	per := w.per
	if !p.needsKey() {
		per = w.perWithoutKey
	}
	if p.hasWithKey && p.hasWithoutKey && w.keyHeader != "" {
		w.line("  # Some of these operations do not need " + w.keyHeader + ", so their clients could make up keys.")
	}
	w.writeRule(name, listOf(patterns), p.methods, per)
}

// newLoginPatterns returns the patterns of a login that no rule with its methods has yet, as YAML.
// Two logins may have the same pattern: /v1/login with the server path /, and /login with the
// server path /v1.
func (w *writer) newLoginPatterns(l login) string {
	var added []string
	for _, pattern := range l.patterns {
		match := strings.Join(l.methods, " ") + " " + pattern
		if !w.logins[match] {
			added = append(added, pattern)
		}
		w.logins[match] = true
	}
	if added == nil {
		return ""
	}
	return listOf(added)
}

// listOf returns patterns as YAML: a text, or a list.
func listOf(patterns []string) string {
	quoted := make([]string, len(patterns))
	for i, pattern := range patterns {
		quoted[i] = fmt.Sprintf("%q", pattern)
	}
	if len(quoted) == 1 {
		return quoted[0]
	}
	return "[" + strings.Join(quoted, ", ") + "]"
}

// writeRule writes a rule with one limit. The path is a text of YAML. "" matches all requests.
func (w *writer) writeRule(name, path string, methods []string, per string) {
	w.line("  - name: " + name)
	if path != "" {
		w.line(fmt.Sprintf("    match: {method: [%s], path: %s}", strings.Join(methods, ", "), path))
	}
	w.line("    per: " + per)
	if per == "client" {
		w.line("    new_identities: 20/min         # per address: made-up keys do not evade the limit")
	}
	w.line("    limits:")
	w.line(fmt.Sprintf("      - {rate: %q}", w.rate))
}

func (w *writer) writeGroups(groups []*group) {
	for i, g := range groups {
		if i > 0 {
			w.line("")
		}
		name := w.uniqueName(g.name)
		for _, l := range g.logins {
			patterns := w.newLoginPatterns(l)
			if patterns == "" {
				continue
			}
			w.line("  # At most five failed attempts in any minute, for each address. Responses with another status do not count.")
			w.line("  # The rule of the group also applies, so successful requests have a limit too.")
			w.line("  # While Redis is away, each instance admits its share. To refuse all attempts then, add on_failure: closed.")
			w.line("  - name: " + w.uniqueName(name+"-attempts"))
			w.line(fmt.Sprintf("    match: {method: [%s], path: %s}", strings.Join(l.methods, ", "), patterns))
			w.line("    always: true")
			w.line("    per: ip")
			w.line("    limits:")
			w.line("      - {rate: 5/min, algorithm: sliding-log, on_status: [400, 401, 403]}")
			w.line("")
		}
		if g.isSplit() {
			w.writePartRule(w.uniqueName(name+"-read"), g.patterns, g.reads)
			w.line("")
			w.writePartRule(w.uniqueName(name+"-write"), g.patterns, g.writes)
			continue
		}
		w.writePartRule(name, g.patterns, g.reads.join(g.writes))
	}
}

var notInName = regexp.MustCompile(`[^a-z0-9_.-]+`)

// uniqueName makes a name for a rule from a text. No other rule has this name.
func (w *writer) uniqueName(text string) string {
	const maxLength = 40 // characters, without the number that makes it unique
	base := strings.Trim(notInName.ReplaceAllString(strings.ToLower(text), "-"), "-.")
	base = strings.ReplaceAll(base, "penstock.", "penstock-") // names that begin with penstock. are reserved
	if len(base) > maxLength {
		base = base[:maxLength]
	}
	base = cmp.Or(base, "rule")
	name := base
	for w.names[name] > 0 {
		w.names[base]++
		name = fmt.Sprintf("%s-%d", base, w.names[base])
	}
	w.names[name]++
	return name
}
