package policyfile

import (
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock/policy"
)

// A key says that its client is on a list only if it decides the conditions of the lists.
func TestListOfAKey(t *testing.T) {
	const tail = "rules: [{name: a, per: {first_of: [{key: header X-API-Key}, ip]}, limits: [{rate: 9/s}]}]\n"
	for _, c := range []struct {
		lists, key string
		want       policy.ListMatch
	}{
		{"allow: {header X-API-Key: [friend]}\n", "key:friend", policy.AllowListed},
		{"allow: {header X-API-Key: [friend]}\n", "key:other", policy.NotListed},
		{"allow: {ip: 192.0.2.0/24}\n", "key:friend", policy.NotListed},
		{"allow: {ip: 192.0.2.0/24}\n", "ip:192.0.2.1", policy.AllowListed},
		{"deny: {header X-API-Key: [foe]}\n", "key:foe", policy.DenyListed},
		{"deny: {header X-API-Key: [foe]}\nallow: {header X-API-Key: [foe]}\n", "key:foe", policy.DenyListed},
		{"deny: {ip: 192.0.2.0/24}\nallow: {header X-API-Key: [friend]}\n", "key:friend", policy.NotListed}, // denied from these addresses
		{"", "key:friend", policy.NotListed},
	} {
		rules := policyIn(t, "policy.yaml", c.lists+tail).Rules
		if _, got, _ := rules.ClientOf(rules.Spec().Rules[0].Limits[0].Key, c.key); got != c.want {
			t.Errorf("%sthe key %s is on the list %d; want %d", c.lists, c.key, got, c.want)
		}
	}
}

// A key says which tier its client has if the conditions of the tiers are about what the key was
// made from. Otherwise the client may have several tiers.
func TestTiersOfAKey(t *testing.T) {
	const tail = "rules: [{name: a, per: client, limits: [{rate: 9/s}]}]\n"
	const client = "identities: {client: {first_of: [{key: header X-API-Key}, ip]}}\n"
	const listed = "tiers: {gold: {header X-API-Key: [gold-1, 'gold 2']}, free: default}\n"
	const tokens = "tokens: {secret: 0123456789abcdef0123456789abcdef, audience: a}\n"
	for _, c := range []struct {
		policy, key string
		want        string
	}{
		{client + listed, "key:gold-1", "gold"},
		{client + listed, "key:gold%202", "gold"},
		{client + listed, "key:gold 2", "gold free"}, // no request has this key
		{client + listed, "key:bronze-1", "free"},
		{client + listed, "ip:192.0.2.1", "free"}, // it has no API key
		{client + listed, "key:#" + strings.Repeat("0", 64), "gold free"},
		{client + listed, "unknown", "gold free"},
		{client + listed, "user:7", "gold free"},
		{client + "tiers: {gold: {header X-API-Key: '*'}, free: default}\n", "key:a", "gold"},
		{client + "tiers: {gold: {header X-Plan: gold}, free: default}\n", "key:gold-1", "gold free"},
		{client + "tiers: {gold: {cookie X-API-Key: gold-1}, free: default}\n", "key:gold-1", "gold free"},
		{client + "tiers: {gold: {header X-API-Key: gold-1, ip: 192.0.2.1}, free: default}\n", "key:gold-1", "gold free"},
		{client + "tiers: {gold: {header X-API-Key: gold-1, ip: 192.0.2.1}, free: default}\n", "key:other", "free"},
		{client + "tiers: {gold: [{header X-Plan: gold}, {header X-API-Key: gold-1}], free: default}\n", "key:gold-1", "gold"},
		{client + "tiers: {gold: {header X-API-Key: gold-1}, silver: {header X-Plan: s}, free: default}\n", "key:other", "silver free"},
		{client + "tiers: {office: {ip: 192.0.2.0/24}, free: default}\n", "ip:192.0.2.1", "office"},
		{client + "tiers: {office: {ip: 192.0.2.0/24}, free: default}\n", "ip:198.51.100.1", "free"},
		{client + "tiers: {office: {ip: '2001:db8::1'}, free: default}\n", "ip:2001:db8::/64", "office free"}, // the network has other addresses
		{client + "tiers: {office: {ip: 192.0.2.0/24}, free: default}\n", "key:a", "office free"},
		{client + "tiers: {gold: {client: 'key:gold-1'}, free: default}\n", "key:gold-1", "gold"},
		{client + "tiers: {gold: {client: 'key:gold-1'}, free: default}\n", "key:other", "free"},
		{"identities: {client: {user: claim sub}}\n" + tokens + "tiers: {staff: {claim sub: [ann]}, free: default}\n", "user:ann", "staff"},
		{"identities: {client: {user: claim sub}}\n" + tokens + "tiers: {staff: {claim sub: [ann]}, free: default}\n", "user:bob", "staff free"}, // the claim may be a list of words
		{"identities: {client: {first_of: [{key: header X-A}, {key: header X-B}]}}\ntiers: {gold: {header X-A: a}, free: default}\n", "key:a", "gold free"},
		{"identities: {client: {first_of: [{key: {header X-A: [a, b]}}, ip]}}\ntiers: {gold: {header X-A: c}, free: default}\n", "ip:192.0.2.1", "gold free"}, // X-A may be c
		{"identities: {client: {all_of: [{key: header X-A}, ip]}}\ntiers: {gold: {header X-A: a}, free: default}\n", "key:a,ip:192.0.2.1", "gold free"},
		{"identities: {client: {tier: tier}}\n" + listed, "tier:gold", "gold"},
		{"identities: {client: {tier: tier}}\n" + listed, "tier:none", ""},
		{"identities: {client: global}\ntiers: {gold: {header X-A: a}, free: default}\n", "global", "gold free"},
	} {
		rules := policyIn(t, "policy.yaml", c.policy+tail).Rules
		var got []string
		tiers, _, _ := rules.ClientOf(rules.Spec().Rules[0].Limits[0].Key, c.key)
		for _, tier := range tiers {
			got = append(got, rules.Spec().Tiers[tier].Name)
		}
		if !slices.Equal(got, strings.Fields(c.want)) {
			t.Errorf("%sthe key %s may have the tiers %q; want %q", c.policy, c.key, got, c.want)
		}
	}
}
