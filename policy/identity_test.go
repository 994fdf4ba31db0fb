package policy

import (
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/syntax"
)

// Different values have different escaped forms, and no escaped form has a separator of values.
func FuzzEscape(f *testing.F) {
	long := strings.Repeat("x", syntax.MaxKeyValue+1)
	for _, value := range []string{"", "a", "a,b", "%2C", "#", "é", "\xff", "a b", "key:a", long, long + ",", escape(long), escape(long)[1:]} {
		f.Add(value, "a")
		f.Add("%2C", value)
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		escapedA, escapedB := escape(a), escape(b)
		if (escapedA == escapedB) != (a == b) {
			t.Fatalf("%q and %q are escaped as %q and %q; want equal texts only for equal values", a, b, escapedA, escapedB)
		}
		// A comma separates the values of a combined key.
		if pair := escapedA + "," + escapedB; strings.Count(pair, ",") != 1 {
			t.Fatalf("%q and %q look like more than two values: %q", a, b, pair)
		}
		for _, c := range []byte(escapedA) {
			if c <= ' ' || c >= 0x7f {
				t.Fatalf("%q is escaped as %q, which has the byte %q; want printable ASCII without spaces", a, escapedA, c)
			}
		}
		if len(escapedA) > 3*syntax.MaxKeyValue || a != "" && escapedA == "" {
			t.Fatalf("%q is escaped in %d bytes; want 1 to %d", a, len(escapedA), 3*syntax.MaxKeyValue)
		}
	})
}

func TestCanBeChecksTheFirstKindOfAKey(t *testing.T) {
	t.Parallel()
	byUser, byDevice := By("user", Header("X-User")), By("device", Header("X-Device"))
	for _, c := range []struct {
		name string
		id   *Identity
		key  string
		want bool
	}{
		{name: "user", id: byUser, key: "user:42", want: true},
		{name: "user", id: byUser, key: "device:7"},
		{name: "user", id: byUser, key: "unknown", want: true},
		{name: "global", id: Global(), key: "global", want: true},
		{name: "global", id: Global(), key: "unknown"},
		{name: "first of", id: firstOf(byUser, byDevice), key: "device:7", want: true},
		{name: "first of", id: firstOf(byUser, byDevice), key: "ip:192.0.2.1"},
		{name: "all of", id: allOf(byUser, byDevice), key: "user:42,device:7", want: true},
		{name: "all of", id: allOf(byUser, byDevice), key: "user:42"},
		{name: "all of", id: allOf(byUser, byDevice), key: "device:7,user:42"},
		{name: "all of one", id: allOf(byUser), key: "user:42", want: true},
	} {
		if got := c.id.CanHaveKey(c.key); got != c.want {
			t.Errorf("%s: CanHaveKey(%q) is %v; want %v", c.name, c.key, got, c.want)
		}
	}
}

func TestExampleKeyCanBeAKey(t *testing.T) {
	t.Parallel()
	byUser, byDevice := By("user", Header("X-User")), By("device", Header("X-Device"))
	for want, id := range map[string]*Identity{
		"user:42":                     byUser,
		"global":                      Global(),
		"device:42":                   firstOf(byDevice, byUser),
		"user:42,device:42":           allOf(byUser, byDevice),
		"user:42,device:42,global":    allOf(firstOf(byUser, byDevice), byDevice, Global()),
		"user:42,device:42,device:42": allOf(allOf(byUser, byDevice), byDevice),
	} {
		if got := id.ExampleKey("42"); got != want || !id.CanHaveKey(got) {
			t.Errorf("the example is %q, and CanHaveKey returns %t for it; want %q and true", got, id.CanHaveKey(got), want)
		}
	}
}

func TestMissingPartOfACombinedKeyIsItsKind(t *testing.T) {
	t.Parallel()
	byUser, byDevice, byTeam := By("user", Header("X-User")), By("device", Header("X-Device")), By("team", Header("X-Team"))
	for want, id := range map[string]*Identity{
		"team:1,user:":         allOf(byTeam, byUser),
		"user:,team:1":         allOf(firstOf(byUser, byDevice), byTeam),
		"user:,device:,team:1": allOf(allOf(byUser), byDevice, byTeam),
		"device:,team:1":       allOf(allOf(byDevice, byUser), byTeam),
		"unknown":              allOf(byUser, byDevice),
	} {
		q := request{attributes: fields{KindHeader: {"X-Team": {"1"}}}}
		if got := q.key(id); got != want {
			t.Errorf("the key of a request with only X-Team is %q; want %q", got, want)
		}
	}
}

func TestIdentityNeedsTheKindsOfItsParts(t *testing.T) {
	t.Parallel()
	byUser, byClaim := By("user", Header("X-User")), By("sub", Source{Kind: KindClaim, Name: "sub"})
	nested := Source{Kind: KindIdentity, Identity: byClaim}
	for _, c := range []struct {
		name string
		id   *Identity
		want bool // whether it needs a claim
	}{
		{name: "header", id: byUser},
		{name: "claim", id: byClaim, want: true},
		{name: "first of", id: firstOf(byUser, byClaim), want: true},
		{name: "all of", id: allOf(byUser, byClaim), want: true},
		{name: "all of headers", id: allOf(byUser, byUser)},
		{name: "key by an identity", id: By("key", nested), want: true},
		{name: "key by another identity", id: By("key", Source{Kind: KindIdentity, Identity: byUser})},
	} {
		if got := c.id.Needs(KindClaim); got != c.want {
			t.Errorf("%s: Needs(KindClaim) is %v; want %v", c.name, got, c.want)
		}
	}
}

func firstOf(ids ...*Identity) *Identity { return &Identity{FirstOf: ids} }

func allOf(ids ...*Identity) *Identity { return &Identity{AllOf: ids} }
