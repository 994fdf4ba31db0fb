package policy

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/syntax"
)

// namesOf makes Rules with one rule by address. change adds what the policy reads.
func namesOf(t *testing.T, change func(*Spec)) *Rules {
	t.Helper()
	spec, err := Simple("search", ByAddress(), guard.FailOpen, penstock.PerSecond(10))
	if err != nil {
		t.Fatal(err)
	}
	change(&spec)
	rules, err := New(spec)
	if err != nil {
		t.Fatal(err)
	}
	return rules
}

// is returns a test that cannot be wrong.
func is(source Source, value string) Test {
	test, err := newTest(source, value)
	if err != nil {
		panic(err)
	}
	return test
}

// readers are the ways in which a policy can read a header.
var readers = map[string]func(spec *Spec, header string){
	"the deny list":  func(s *Spec, header string) { s.Deny = []Condition{{is(Header(header), "banned")}} },
	"the allow list": func(s *Spec, header string) { s.Allow = []Condition{{is(Header(header), "partner")}} },
	"a tier": func(s *Spec, header string) {
		s.Tiers = []Tier{{Name: "a", AnyOf: []Condition{{is(Header(header), "b")}}}, {Name: "c", IsDefault: true}}
	},
	"a limit":            func(s *Spec, header string) { s.Rules[0].Limits[0].Key = By("key", Header(header)) },
	"a part of an AllOf": func(s *Spec, header string) { s.Rules[0].Limits[0].Key = allOf(ByAddress(), By("key", Header(header))) },
	"an identity":        func(s *Spec, header string) { s.Identities = []*Identity{By("key", Header(header))} },
	"a condition":        func(s *Spec, header string) { s.Rules[0].Match.Where = Condition{is(Header(header), "b")} },
	"a cost":             func(s *Spec, header string) { s.Rules[0].Limits[0].Cost = Cost{Header: header, Max: 5} },
	"the token":          func(s *Spec, header string) { s.Tokens.Header = header },
}

func TestHeaderThatSomeServersReadAsOneOfThePolicyIsMalformed(t *testing.T) {
	t.Parallel()
	for what, read := range readers {
		rules := namesOf(t, func(s *Spec) { read(s, "X-Api-Key") })
		for _, c := range []struct {
			name    string
			isClear bool
		}{
			{"X-Api-Key", true}, {"x-api-key", true}, {"X-API-KEY", true},
			{"X_api_key", false}, {"X_API_KEY", false}, {"X-API_Key", false}, {"X.Api.Key", false}, {"X~api!key", false}, {"X'Api*Key", false}, {"X Api\x00Key", false}, {"X\xffapi-key", false},
			{"Xapikey", true}, {"X-Api-Keys", true}, {"X-Api-Kez", true}, {"X_api_id_", true}, {"XaapibKey", true}, {"", true}, {strings.Repeat("_", 9+64), true},
		} {
			var v Evaluation
			rules.Evaluate(fields{KindHeader: {c.name: {"b"}, "Accept": {"text/html"}}}, &v)
			if isClear := v.Ambiguous == ""; isClear != c.isClear {
				t.Errorf("%s reads X-Api-Key; whether a request with the header %q is clear: %v (%q); want %v", what, c.name, isClear, v.Ambiguous, c.isClear)
			}
			if v.Ambiguous != "" && !strings.Contains(v.Ambiguous, "header X-Api-Key") {
				t.Errorf("a request with the header %q is malformed, because %q; want the header X-Api-Key named", c.name, v.Ambiguous)
			}
		}
		if !rules.ReadsHeader("x-API-key") || rules.ReadsHeader("X-Api-Kez") {
			t.Errorf("%s reads X-Api-Key; ReadsHeader says %v of it, and %v of X-Api-Kez; want true and false", what, rules.ReadsHeader("x-API-key"), rules.ReadsHeader("X-Api-Kez"))
		}
	}
	others := namesOf(t, func(s *Spec) {})
	var v Evaluation
	if others.Evaluate(fields{KindHeader: {"X_api_key": {"b"}}}, &v); v.Ambiguous != "" {
		t.Errorf("a request with a header that the policy does not read is malformed, because %q; want it clear", v.Ambiguous)
	}
}

// A policy may itself use a name with an underscore, and then also the name with a dash.
func TestHeadersThatThePolicyNamesAreNoAliases(t *testing.T) {
	t.Parallel()
	underscore := namesOf(t, func(s *Spec) { readers["a limit"](s, "Api_Key") })
	both := namesOf(t, func(s *Spec) { readers["a limit"](s, "Api_Key"); readers["the token"](s, "Api-Key") })
	for _, c := range []struct {
		rules   *Rules
		name    string
		isClear bool
	}{
		{underscore, "Api_Key", true}, {underscore, "api_key", true}, {underscore, "Api-Key", false}, {underscore, "Api.Key", false},
		{both, "Api_Key", true}, {both, "Api-Key", true}, {both, "Api.Key", false},
	} {
		var v Evaluation
		c.rules.Evaluate(fields{KindHeader: {c.name: {"b"}}}, &v)
		if isClear := v.Ambiguous == ""; isClear != c.isClear {
			t.Errorf("whether a request with the header %q is clear: %v (%q); want %v", c.name, isClear, v.Ambiguous, c.isClear)
		}
	}
}

func TestQueryThatSomeServersCutShortIsMalformed(t *testing.T) {
	t.Parallel()
	readsParameter := namesOf(t, func(s *Spec) { s.Rules[0].Match.Where = Condition{is(Source{Kind: KindQuery, Name: "key"}, "banned")} })
	readsCookie := namesOf(t, func(s *Spec) { s.Tokens.Cookie = "sid" })
	readsNeither := namesOf(t, func(s *Spec) {})
	for _, c := range []struct {
		rules         *Rules
		query, cookie string
		isClear       bool
	}{
		{readsParameter, "key%00=banned", "", false}, {readsParameter, "a=b&key%00x=banned", "", false}, {readsParameter, "a=b;key%00[]=banned", "", false}, {readsParameter, "key%00", "", false},
		{readsParameter, "key=%00banned", "", true}, {readsParameter, "key%0=banned", "", false}, {readsParameter, "a=1&%u006bey=banned", "", false}, {readsParameter, "a=%zz", "", true}, {readsNeither, "%u006bey=banned", "%u0073id=b", true}, {readsParameter, "key%2500=banned", "", true}, {readsParameter, "", "a%00=b", true},
		{readsCookie, "", "a=b; sid%00=c", false}, {readsCookie, "", "sid%00x=c", false}, {readsCookie, "", "%u0073id=c", false}, {readsCookie, "", "a=b,%U0073id=c", false}, {readsCookie, "", "100%=c; a=%u0041", true}, {readsCookie, "", "a=%00; b=c", true}, {readsCookie, "key%00=banned", "", true},
		{readsNeither, "key%00=banned", "sid%00=c", true},
		{readsParameter, "?key=banned", "", false}, {readsParameter, "a=b&?key=banned", "", true}, {readsParameter, "key=?", "", true}, {readsNeither, "?key=banned", "", true},
		{readsParameter, "key=banned#x", "", false}, {readsParameter, "#key=banned", "", false}, {readsParameter, "key=%23", "", true}, {readsNeither, "key=banned#x", "", true},
	} {
		a := fields{KindRawQuery: {"": {c.query}}, KindHeader: {"Cookie": {"first=1", c.cookie}}}
		var v Evaluation
		c.rules.Evaluate(a, &v)
		if isClear := v.Ambiguous == ""; isClear != c.isClear {
			t.Errorf("whether a request with the query %q and the cookies %q is clear: %v (%q); want %v", c.query, c.cookie, isClear, v.Ambiguous, c.isClear)
		}
	}
}

// A header that replaces the method makes a request malformed only where rules use the method.
func TestReplacedMethodIsMalformedWhereRulesUseTheMethod(t *testing.T) {
	t.Parallel()
	withMethod := func(s *Spec) {
		s.Rules[0].Match = Match{Methods: []string{"DELETE"}, Hosts: []string{"a.example"}, Paths: []string{"/files"}}
	}
	withCost := func(s *Spec) { s.Rules[0].Limits[0].Cost = Cost{Units: 1, Methods: map[string]int64{"DELETE": 5}} }
	byMethod := func(s *Spec) { s.Rules[0].Limits[0].Key = By("method", Source{Kind: KindMethod}) }
	onDenyList := func(s *Spec) { s.Deny = []Condition{{is(Source{Kind: KindMethod}, "DELETE")}} }
	without := func(s *Spec) {}
	for _, c := range []struct {
		what             string
		policy           func(*Spec)
		host, path       string
		header, override string
		isClear          bool
	}{
		{"a rule with the method", withMethod, "a.example", "/files", "X-Http-Method-Override", "DELETE", false},
		{"a rule with the method", withMethod, "a.example", "/files", "X-Http-Method", "delete", false},
		{"a rule with the method", withMethod, "a.example", "/files", "X-Method-Override", " PUT", false},
		{"a rule with the method", withMethod, "a.example", "/files", "X-Http-Method-Override", "post", true},
		{"a rule with the method", withMethod, "b.example", "/files", "X-Http-Method-Override", "DELETE", true},
		{"a rule with the method", withMethod, "a.example", "/other", "X-Http-Method-Override", "DELETE", true},
		{"a rule with the method", withMethod, "a.example", "/other", "X_http_method_override", "DELETE", false},
		{"a cost by method", withCost, "", "/", "X-Http-Method-Override", "DELETE", false},
		{"a limit by method", byMethod, "", "/", "X-Http-Method-Override", "DELETE", false},
		{"a deny list with the method", onDenyList, "", "/", "X-Http-Method-Override", "DELETE", false},
		{"a policy without methods", without, "", "/", "X-Http-Method-Override", "DELETE", true},
		{"a policy without methods", without, "", "/", "X_http_method_override", "DELETE", true},
	} {
		a := fields{KindMethod: {"": {"POST"}}, KindHost: {"": {c.host}}, KindPath: {"": {c.path}}, KindHeader: {c.header: {c.override}}}
		var v Evaluation
		namesOf(t, c.policy).Evaluate(a, &v)
		if isClear := v.Ambiguous == ""; isClear != c.isClear {
			t.Errorf("%s: whether a POST of %s%s with %s: %q is clear: %v (%q); want %v", c.what, c.host, c.path, c.header, c.override, isClear, v.Ambiguous, c.isClear)
		}
	}
}

// Reading the names of a request costs no memory.
func TestNamesOfOrdinaryRequestsAllocateNothing(t *testing.T) {
	rules := namesOf(t, func(s *Spec) {
		for _, read := range readers {
			read(s, "X-Api-Key")
		}
		s.Rules[0].Match.Methods = []string{"GET"}
		s.Tokens.Cookie = "sid"
		s.Identities = append(s.Identities, By("q", Source{Kind: KindQuery, Name: "key"}))
	})
	var a Attributes = ordinary{"Accept": nil, "Accept-Encoding": nil, "User-Agent": nil, "X-Api-Key": {"a"}, "Cookie": {"a=b; sid=%20c"}, "X-Request-Id": nil}
	n := testing.AllocsPerRun(100, func() {
		if why := rules.names.explain(a); why != "" || isMethodOverridden(a, "GET") {
			t.Fatalf("an ordinary request is malformed, because %q; want it clear", why)
		}
	})
	if n != 0 {
		t.Errorf("reading the names of a request makes %v allocations; want none", n)
	}
}

// ordinary are the headers of a request with a query.
type ordinary map[string][]string

var ordinaryQuery = []string{"key=a%20b&page=2"}

func (o ordinary) Lookup(kind Kind, name string) []string {
	switch kind {
	case KindHeader:
		return o[name]
	case KindRawQuery:
		return ordinaryQuery
	}
	return nil
}

func (o ordinary) HasHeader(test func(string) bool) bool { return syntax.HasHeader(o, test) }
func (o ordinary) Address() netip.Addr                   { return netip.Addr{} }
func (o ordinary) BodySize() int64                       { return 0 }

func BenchmarkNames(b *testing.B) {
	rules, err := New(Spec{Name: "a", Deny: []Condition{{is(Header("X-Api-Key"), "banned")}}})
	if err != nil {
		b.Fatal(err)
	}
	var a Attributes = ordinary{"Accept": nil, "Accept-Encoding": nil, "Accept-Language": nil, "User-Agent": nil, "X-Api-Key": {"a"}, "Cookie": nil, "X-Request-Id": nil, "X-Forwarded-For": nil, "Referer": nil, "Sec-Fetch-Site": nil}
	b.ReportAllocs()
	for b.Loop() {
		rules.names.explain(a)
	}
}
