package policyfile

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/testing/jwttest"
	"github.com/penstock/penstock/internal/wording"
	"github.com/penstock/penstock/policy"
)

// A golden is a policy, its requests, and the wanted text: the policy's description and warnings,
// and what Evaluate returns for each request. The text is in NAME.txt. The requests are beside it
// in NAME.requests, separated by empty lines:
//
//	# a comment
//	POST http://HOST/PATH?QUERY from ADDRESS size BYTES
//	  Header: value
//
// where the host, from, size and headers may be left out. In a header, {JSON} stands for a valid
// token with these claims.
type golden struct {
	policy   string // file with the policy, in the folder dir
	dir      string
	basePath string // of NAME.txt and NAME.requests, without the extension
}

// goldens returns the goldens of testdata/golden, and one for each example policy.
func goldens(t testing.TB) (list []golden) {
	t.Helper()
	for _, place := range []struct{ pattern, goldenFolder string }{
		{"testdata/golden/*.yaml", "testdata/golden"},
		{"../../examples/*.yaml", "testdata/golden/examples"},
		{"../../examples/policies/*.yaml", "testdata/golden/examples/policies"},
	} {
		files, err := filepath.Glob(place.pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("there is no %s: %v", place.pattern, err)
		}
		for _, file := range files {
			name := filepath.Base(file)
			list = append(list, golden{policy: name, dir: filepath.Dir(file), basePath: filepath.Join(place.goldenFolder, strings.TrimSuffix(name, ".yaml"))})
		}
	}
	return list
}

// envOfGoldens returns the value of a variable that goldens may name.
func envOfGoldens(name string) (string, bool) {
	value, ok := map[string]string{"GOLDEN_RATE": "9/s", "GOLDEN_SECRET": jwttest.Secret}[name]
	return value, ok
}

// compile reads and compiles the policy. The policy's folder becomes the working directory.
func (g golden) compile(t *testing.T) (*policyConfig, *Policy) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(g.dir, g.policy))
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(g.dir) // for the files that the policy names
	config, err := parse(g.policy, text, envOfGoldens, allSections)
	if err != nil {
		t.Fatal(err)
	}
	p, err := config.compile()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return config, p
}

func TestGoldenPolicies(t *testing.T) {
	requests := 0
	list := goldens(t)
	for i := range list {
		list[i].basePath, _ = filepath.Abs(list[i].basePath)
	}
	for _, g := range list {
		_, name, _ := strings.Cut(g.basePath, "/golden/")
		t.Run(name, func(t *testing.T) {
			config, p := g.compile(t)
			rules, sign := newSigner(config, p)
			var s strings.Builder
			s.WriteString(descriptionOf(p.Rules))
			if len(p.Warnings)+len(p.Hints) > 0 {
				s.WriteByte('\n')
			}
			for _, w := range p.Warnings {
				fmt.Fprintf(&s, "warning: %v\n", w)
			}
			for _, h := range p.Hints {
				fmt.Fprintf(&s, "hint: %v\n", h)
			}
			blocks := readRequests(t, g.basePath+".requests")
			requests += len(blocks)
			for _, lines := range blocks {
				fmt.Fprintf(&s, "\n==== %s\n%s", strings.Join(lines, "\n"), assessRequest(t, rules, lines, sign))
			}
			compare(t, g.basePath+".txt", s.String())
		})
	}
	t.Logf("counted: %d policies with goldens", len(list))
	t.Logf("counted: %d requests in goldens", requests)
}

// compare fails if a text differs from its file. With -rewrite it writes the text into the file.
func compare(t *testing.T, file, text string) {
	t.Helper()
	if *rewrite {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v\n(go test ./policy/policyfile -run Golden -rewrite writes the file)", err)
	}
	wantLines, gotLines := strings.Split(string(want), "\n"), strings.Split(text, "\n")
	for i := range max(len(wantLines), len(gotLines)) {
		wantLine, gotLine := "", ""
		if i < len(wantLines) {
			wantLine = wantLines[i]
		}
		if i < len(gotLines) {
			gotLine = gotLines[i]
		}
		if wantLine != gotLine {
			t.Fatalf("%s:%d: the line is\n\t%s\nwant\n\t%s\n(go test ./policy/policyfile -run Golden -rewrite writes the file; git diff shows all changes)", file, i+1, gotLine, wantLine)
		}
	}
}

// readRequests returns the lines of each request, with the comments before them.
func readRequests(t *testing.T, file string) (requests [][]string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v\n(each golden needs a file of requests)", err)
	}
	for _, block := range strings.Split(strings.TrimSpace(string(text)), "\n\n") {
		requests = append(requests, strings.Split(block, "\n"))
	}
	return requests
}

// requestForm has the groups method, host, path, query, address and size.
var requestForm = regexp.MustCompile(`^([A-Z]+) (?:http://([^/]+))?(/[^ ?]*)(?:\?([^ ]*))?(?: from ([^ ]+))?(?: size (-?\d+))?$`)

// assessRequest evaluates a request, and formats the evaluation.
func assessRequest(t *testing.T, rules *policy.Rules, lines []string, sign func(claims string) string) string {
	t.Helper()
	for strings.HasPrefix(lines[0], "#") {
		lines = lines[1:]
	}
	m := requestForm.FindStringSubmatch(lines[0])
	if m == nil {
		t.Fatalf("%q is not a request; write METHOD http://HOST/PATH?QUERY from ADDRESS size BYTES", lines[0])
	}
	method, host, rawPath, query, address, size := m[1], m[2], m[3], m[4], m[5], m[6]
	path, err := rules.Spec().Paths.Clean(rawPath)
	if err != nil {
		return fmt.Sprintf("refused: %v\n", err)
	}
	a := testRequest{method: method, host: host, path: path, address: address, header: make(http.Header), cookies: make(map[string][]string)}
	a.body, _ = strconv.ParseInt(cmp.Or(size, "0"), 10, 64)
	if a.query, err = url.ParseQuery(query); err != nil {
		t.Fatal(err)
	}
	for _, line := range lines[1:] {
		name, value, ok := strings.Cut(strings.TrimPrefix(line, "  "), ": ")
		if !ok {
			t.Fatalf("%q is not a header; write two spaces, Name: value", line)
		}
		if before, claims, ok := strings.Cut(value, "{"); ok {
			value = before + sign("{"+claims)
		}
		a.header.Add(name, value)
	}
	for _, cookie := range (&http.Request{Header: a.header}).Cookies() {
		a.cookies[cookie.Name] = append(a.cookies[cookie.Name], cookie.Value)
	}
	var v policy.Evaluation
	rules.Evaluate(a, &v)
	return evaluationText(t, rules.Matching(a), &v)
}

// evaluationText formats an evaluation, with one line for each charge: the limit, its tag in the
// store, the key, the cost and the plan.
func evaluationText(t *testing.T, matching []*policy.Rule, v *policy.Evaluation) string {
	t.Helper()
	var s strings.Builder
	w := tabwriter.NewWriter(&s, 0, 0, 2, ' ', 0)
	names := func(rules []*policy.Rule) string {
		var list []string
		for _, r := range rules {
			list = append(list, r.Name)
		}
		return cmp.Or(strings.Join(list, ", "), "none")
	}
	if v.Ambiguous != "" {
		return "malformed: " + v.Ambiguous + "\n"
	}
	switch v.ListMatch {
	case policy.DenyListed:
		return "refused: on the list deny\n"
	case policy.AllowListed:
		return "never limited: on the list allow\n"
	}
	fmt.Fprintf(&s, "rules that match: %s; that apply: %s\n", names(matching), names(v.Matched))
	if v.Tier != "" {
		fmt.Fprintf(&s, "tier: %s\n", v.Tier)
	}
	writeCharge := func(what string, l *policy.Limit, c penstock.Charge) {
		_, planText, _ := strings.Cut(c.Plan.String(), ": ")
		planText += windowText(c.Plan)
		if c.Patience > 0 {
			planText += ", waits " + wording.Period(c.Patience)
		}
		if c.Holder != "" {
			planText += ", held"
		}
		tag := c.Plan.Tag() >> 7 // without the bits for the count
		fmt.Fprintf(w, "%s\t%s\t%07x\t%s\t%d\tof %s\n", what, l.FullName, tag, c.Key, c.Cost, planText)
	}
	for i, c := range v.Charges {
		writeCharge("charge", v.Limits[i], c)
	}
	for _, shadow := range v.Shadows {
		what := "shadow"
		if shadow.Candidate {
			what = "candidate"
		}
		for i, c := range shadow.Charges {
			writeCharge(what, shadow.Limits[i], c)
			what = "  with" // a further charge of the same batch
		}
	}
	for i, batch := range append([]policy.Shadow{{Charges: v.Charges}}, v.Shadows...) {
		if err := penstock.Check(batch.Charges); err != nil && len(batch.Charges) > 0 {
			t.Errorf("batch %d of\n%s\nis rejected by stores: %v", i, s.String(), err)
		}
	}
	w.Flush()
	return s.String()
}

// windowText describes a limit's windows: how many parts they have, and where they begin. For
// calendar windows it returns two ends, in UTC: that of the window with noon on 1 July 2026, and
// that of the next window.
func windowText(p *penstock.Plan) string {
	const minutes = "2006-01-02 15:04"
	a, params := p.Algorithm(), p.Params(time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC).UnixMicro())
	switch {
	case a.Name() == penstock.SubWindow(1).Name():
		parts := params[2]
		return fmt.Sprintf(", %d parts", parts)
	case a.IsCalendar():
		end, nextEnd := time.UnixMicro(params[1]), time.UnixMicro(params[2])
		return fmt.Sprintf(", ends %s, %s", end.UTC().Format(minutes), nextEnd.UTC().Format(minutes))
	case a.Name() == penstock.FixedWindow.Name():
		if isAnchored := params[3] == 1; isAnchored {
			return ", from the first"
		}
		return ", from the epoch"
	}
	return ""
}

// newSigner returns rules that accept test tokens, and a function that signs such tokens. The
// function is nil if the policy has no tokens.
func newSigner(config *policyConfig, p *Policy) (*policy.Rules, func(claims string) string) {
	t := config.Tokens
	if t == nil {
		return p.Rules, nil
	}
	alg, key, rules := "ES256", jwttest.Pairs()["ES256"][0], p.Rules
	if t.Secret != "" {
		alg, key = "HS256", []byte(t.Secret)
	} else {
		spec := rules.Spec()
		spec.Tokens.Verifier = anyIssuer{spec.Tokens.Verifier}
		var err error
		if rules, err = policy.New(spec); err != nil {
			panic(err)
		}
	}
	standardClaims := fmt.Sprintf(`{"iss": %q, "aud": %q, "exp": %d, `, t.Issuer, t.Audience, time.Now().Add(time.Hour).Unix())
	return rules, func(claims string) string {
		return jwttest.Sign(alg, key, `{"alg": "`+alg+`"}`, standardClaims+strings.TrimPrefix(claims, "{"))
	}
}

// anyIssuer accepts test tokens without checking the signature.
type anyIssuer struct{ policy.Verifier }

func (anyIssuer) Claims(token string) (policy.Claims, *policy.TokenError) {
	payload, err := base64.RawURLEncoding.DecodeString(strings.Split(token, ".")[1])
	if err != nil {
		panic(err)
	}
	decoder := json.NewDecoder(bytes.NewReader(payload))
	decoder.UseNumber()
	var claims policy.Claims
	if err := decoder.Decode(&claims); err != nil {
		panic(err)
	}
	return claims, nil
}

// Each field, algorithm and source of the language must occur in a golden.
func TestEveryFieldOccursInAGolden(t *testing.T) {
	used := make(map[string]bool)  // by field, as Struct.Field
	words := make(map[string]bool) // by field and the first word of its value, as "Struct.Field word"
	for _, g := range goldens(t) {
		t.Run(g.policy, func(t *testing.T) {
			config, _ := g.compile(t)
			visit(reflect.ValueOf(config), func(field string, v reflect.Value) {
				if !v.IsZero() {
					used[field] = true
				}
				if v.Kind() == reflect.String {
					word, _, _ := strings.Cut(v.String(), " ")
					words[field+" "+word] = true
				}
			})
		})
	}
	all := fieldsBelow(reflect.TypeFor[policyConfig](), make(map[string]bool))
	for _, field := range slices.Sorted(maps.Keys(all)) {
		if !used[field] {
			t.Errorf("no golden uses %s; write it into one of testdata/golden/*.yaml", field)
		}
	}
	for name := range algorithms {
		if !words["limitConfig.Algorithm "+name] {
			t.Errorf("no golden uses algorithm: %s; write it into one of testdata/golden/*.yaml", name)
		}
	}
	for word := range sourceWords {
		if !words["identityConfig.Source "+word] {
			t.Errorf("no golden has an identity by %s; write it into one of testdata/golden/*.yaml", word)
		}
		if !words["clauseConfig.Source "+word] && word != "segment" {
			t.Errorf("no golden has a condition on %s; write it into one of testdata/golden/*.yaml", word)
		}
	}
	sources := 2*len(sourceWords) - 1 // in identities and in conditions; segment has no condition
	t.Logf("counted: %d fields, algorithms and sources in goldens (of %d goldens)", len(all)+len(algorithms)+sources, len(goldens(t)))
}

// fieldsBelow adds the exported fields of all structs below a type to a set, and returns the set. A
// field has the form Struct.Field. The name of a generic struct includes its type argument.
func fieldsBelow(t reflect.Type, into map[string]bool) map[string]bool {
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice:
		fieldsBelow(t.Elem(), into)
	case reflect.Struct:
		for i := range t.NumField() {
			if f := t.Field(i); f.IsExported() && !into[t.Name()+"."+f.Name] {
				into[t.Name()+"."+f.Name] = true
				fieldsBelow(f.Type, into)
			}
		}
	}
	return into
}

// visit calls see for the exported fields of all structs below v.
func visit(v reflect.Value, see func(field string, v reflect.Value)) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			visit(v.Elem(), see)
		}
	case reflect.Slice:
		for i := range v.Len() {
			visit(v.Index(i), see)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() {
				see(v.Type().Name()+"."+f.Name, v.Field(i))
				visit(v.Field(i), see)
			}
		}
	}
}
