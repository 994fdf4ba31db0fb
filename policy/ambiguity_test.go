package policy

import (
	"testing"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
)

func TestCookieIsAmbiguousIfServersFindItInDifferentPlaces(t *testing.T) {
	t.Parallel()
	const name = "session"
	for line, isClear := range map[string]bool{
		"session=a":                     true,
		"a=b; session=a; c":             true,
		"a b; session=a":                true,
		"a=b session; session=a":        true,
		"a=b xsession=c; session=a":     true,
		"a=b session=c; session=a":      false,
		"a=b,SESSION =c":                false,
		"session:x session=c":           false,
		`a="b; session=a; c="`:          false,
		`a="b\"; session=a; c="`:        false,
		"a=b;=session=c":                false, // Werkzeug before 2.2.3 finds it
		"==session=c; session=a":        false,
		"=xsession=c; session=a":        true,
		`a="b"; session=a`:              true,
		`a="b; c=d`:                     true, // without the cookie
		"session=a; session_id session": true,
	} {
		why := explainHiddenCookie(fields{KindHeader: {"Cookie": {line}}}, name)
		if (why == "") != isClear {
			t.Errorf("whether the cookie %q is clear in the line %q: %v (%q); want %v", name, line, why == "", why, isClear)
		}
	}
}

func TestKeyByAuthorizationIsTheSameForEverySpellingThatServersAccept(t *testing.T) {
	t.Parallel()
	spec, err := Simple("search", By("auth", Header("Authorization")), guard.FailOpen, penstock.PerSecond(10))
	if err != nil {
		t.Fatal(err)
	}
	rules, err := New(spec)
	if err != nil {
		t.Fatal(err)
	}
	for line, want := range map[string]string{
		"Bearer abc":   "auth:bearer%20abc",
		"bearer abc":   "auth:bearer%20abc",
		"BEARER   abc": "auth:bearer%20abc",
		"Basic dTpw":   "auth:basic%20dTpw",
		"Bearer:abc":   "", // ambiguous
		"Bearer a\tb":  "",
	} {
		var v Evaluation
		rules.Evaluate(fields{KindHeader: {"Authorization": {line}}}, &v)
		if want == "" {
			if v.Ambiguous == "" || len(v.Charges) != 0 {
				t.Errorf("Authorization %q: the charges are %+v; want none, because the request is ambiguous", line, v.Charges)
			}
		} else if len(v.Charges) != 1 || v.Charges[0].Key != want {
			t.Errorf("Authorization %q: the charges are %+v; want one with the key %q", line, v.Charges, want)
		}
	}
}

// A value of a policy may have any spelling of the scheme, as a request may.
func TestListedAuthorizationsMatchEverySpellingOfTheScheme(t *testing.T) {
	t.Parallel()
	authorization := Header("Authorization")
	is := func(values ...string) Test {
		test, err := newTest(authorization, values...)
		if err != nil {
			t.Fatal(err)
		}
		return test
	}
	const listed, matched = "Bearer listed", "Bearer matched"
	only := is(listed)
	byAuth := By("auth", authorization)
	byAuth.AllowedValues = &only
	newRules := func(change func(*Spec)) *Rules {
		spec, err := Simple("search", byAuth, guard.FailOpen, penstock.PerSecond(10))
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
	withLists := newRules(func(s *Spec) {
		s.Deny = []Condition{{is("Bearer stolen", "basic dTpw")}}
		s.Allow = []Condition{{is("BEARER friend")}}
	})
	for line, want := range map[string]ListMatch{
		"Bearer stolen": DenyListed, "bearer stolen": DenyListed, "BEARER   stolen": DenyListed, "Basic dTpw": DenyListed, "Bearer friend": AllowListed,
		"Bearer Stolen": NotListed, "Basic dTpx": NotListed,
	} {
		var v Evaluation
		if withLists.Evaluate(fields{KindHeader: {"Authorization": {line}}}, &v); v.ListMatch != want {
			t.Errorf("Authorization %q has the list match %d; want %d", line, v.ListMatch, want)
		}
	}
	withMatch := newRules(func(s *Spec) { s.Rules[0].Match.Where = Condition{is(matched, listed)} })
	for line, want := range map[string]string{
		listed: "auth:bearer%20listed", "bearer listed": "auth:bearer%20listed", matched: "unknown", "bearer  matched": "unknown", "Bearer other": "",
	} {
		var v Evaluation
		withMatch.Evaluate(fields{KindHeader: {"Authorization": {line}}}, &v)
		got := ""
		if len(v.Charges) > 0 {
			got = v.Charges[0].Key
		}
		if got != want {
			t.Errorf("Authorization %q is charged under the key %q; want %q", line, got, want)
		}
	}
}

func TestListedMethodsMatchInAnyCase(t *testing.T) {
	t.Parallel()
	test, err := newTest(Source{Kind: KindMethod}, "delete", "PUT")
	if err != nil {
		t.Fatal(err)
	}
	rules, err := New(Spec{Deny: []Condition{{test}}})
	if err != nil {
		t.Fatal(err)
	}
	for method, want := range map[string]ListMatch{"DELETE": DenyListed, "PUT": DenyListed, "GET": NotListed} {
		var v Evaluation
		if rules.Evaluate(fields{KindMethod: {"": {method}}}, &v); v.ListMatch != want {
			t.Errorf("method %s has the list match %d; want %d", method, v.ListMatch, want)
		}
	}
}

// Servers may decode a cookie, so both of its forms match a value that is listed in either.
func TestListedCookiesMatchEncodedAndDecoded(t *testing.T) {
	t.Parallel()
	test, err := newTest(Source{Kind: KindCookie, Name: "sid"}, "s%3Aone", "s:two", "100%")
	if err != nil {
		t.Fatal(err)
	}
	rules, err := New(Spec{Deny: []Condition{{test}}})
	if err != nil {
		t.Fatal(err)
	}
	for value, want := range map[string]ListMatch{
		"s%3Aone": DenyListed, "s:one": DenyListed, "s%3atwo": DenyListed, "s:two": DenyListed, "100%25": DenyListed, "s%253Aone": NotListed, "s:other": NotListed,
		"s:one+": DenyListed, "+s:two++": DenyListed, "s%3Aone%2B": DenyListed, "s:one+x": NotListed, "+": NotListed,
	} {
		var v Evaluation
		rules.Evaluate(fields{KindCookie: {"sid": {value}}, KindHeader: {"Cookie": {"sid=" + value}}}, &v)
		if v.ListMatch != want {
			t.Errorf("the cookie %q has the list match %d (ambiguous: %q); want %d", value, v.ListMatch, v.Ambiguous, want)
		}
	}
}

// cookie-parser of Express reads JSON after j:, and CGI libraries split a value at an ampersand.
func TestCookieIsAmbiguousIfServersReadAnotherValue(t *testing.T) {
	t.Parallel()
	test, err := newTest(Source{Kind: KindCookie, Name: "sid"}, "evil")
	if err != nil {
		t.Fatal(err)
	}
	rules, err := New(Spec{Deny: []Condition{{test}}})
	if err != nil {
		t.Fatal(err)
	}
	for value, isAmbiguous := range map[string]bool{
		"j%3A%22evil%22": true, "%6a:%22evil%22": true, "j:1": true, "j%3A%22%5Cu0065vil%22": true, "evil&x": true, "&evil": true,
		"J:1": false, "aj:1": false, "s:evil.sig": false, "evil%26x": false, "a+b/c==": false,
	} {
		var v Evaluation
		rules.Evaluate(fields{KindCookie: {"sid": {value}}, KindHeader: {"Cookie": {"sid=" + value}}}, &v)
		if (v.Ambiguous != "") != isAmbiguous || v.ListMatch == DenyListed {
			t.Errorf("the cookie %q has the list match %d, and is ambiguous because it %q; want it ambiguous: %v", value, v.ListMatch, v.Ambiguous, isAmbiguous)
		}
	}
}

func TestCookieInsideAnotherIsHidden(t *testing.T) {
	t.Parallel()
	for line, isHidden := range map[string]bool{
		"a=b, sid=c": true, "a=b,%73id=c": true, "a=b %73id=c": true, "\xa0a=b, \xa0sid=c": true, "=sid=c": true, " = %73id=c": true,
		"sid=c": false, "a=b; sid=c": false, "a=b%2Csid=c": false, "a=b, mysid=c": false, "\xa0sid=c": false,
	} {
		a := fields{KindHeader: {"Cookie": {line}}}
		if why := explainHiddenCookie(a, "sid"); (why != "") != isHidden {
			t.Errorf("whether %q hides the cookie sid: %q; want a reason: %v", line, why, isHidden)
		}
	}
}
