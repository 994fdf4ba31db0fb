package policy

import (
	"testing"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
)

func TestCookieIsUnclearIfServersFindItInDifferentPlaces(t *testing.T) {
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
		"Bearer:abc":   "", // unclear
		"Bearer a\tb":  "",
	} {
		var v Evaluation
		rules.Evaluate(fields{KindHeader: {"Authorization": {line}}}, &v)
		if want == "" {
			if v.Unclear == "" || len(v.Charges) != 0 {
				t.Errorf("Authorization %q: the charges are %+v; want none, because the request is unclear", line, v.Charges)
			}
		} else if len(v.Charges) != 1 || v.Charges[0].Key != want {
			t.Errorf("Authorization %q: the charges are %+v; want one with the key %q", line, v.Charges, want)
		}
	}
}
