package policy

import (
	"net/netip"
	"net/url"
)

type Paths struct{ KeepEncodedSlash, IgnoreTrailingSlash, IgnoreCase, StripParameters bool }

func (p Paths) Clean(s string) (string, error)    { return s, nil }
func AddressText(a netip.Addr, p4, p6 int) string { return a.String() }
func (p Paths) Rewrite(u *url.URL) (bool, error)  { return false, nil }
