package policy

import "testing"

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
