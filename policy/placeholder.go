package policy

import (
	"net/netip"
	"net/url"
)

// Tokens placeholder until the tokens branch is merged
type Tokens struct{}

type verifier struct{}

func newVerifier(t Tokens, dir string) (*verifier, error) { return &verifier{}, nil }
func (v *verifier) Close()                                {}
func (v *verifier) ofRequest(a Attributes) (claims, bool) { return claims{}, false }

type claims struct{}

func (c claims) text(name string) (string, bool) { return "", false }
func (c claims) values(name string) []string     { return nil }

type Paths struct{ KeepEncodedSlash, IgnoreTrailingSlash, IgnoreCase, StripParameters bool }

func (p Paths) Clean(s string) (string, error)    { return s, nil }
func AddressText(a netip.Addr, p4, p6 int) string { return a.String() }
func (p Paths) Rewrite(u *url.URL) (bool, error)  { return false, nil }
