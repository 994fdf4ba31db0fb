package httplimit

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/penstock/penstock"
)

func TestWrongProxiesAreRefusedWithAReason(t *testing.T) {
	t.Parallel()
	noNetwork := "is not a network; write one such as 10.0.0.0/8, 2001:db8::/32 or 192.0.2.1, or unix"
	everybody := "would let every client choose its address; write the networks of your proxies"
	for text, want := range map[string]string{
		"":                   noNetwork,
		"proxy.example":      noNetwork,
		"10.0.0":             noNetwork,
		"10.0.0.0/33":        noNetwork,
		"10.0.0.0/":          noNetwork,
		"10.0.0.0/08":        noNetwork,
		"10.0.0.1-10.0.0.9":  noNetwork,
		"10.0.0.0/8,":        noNetwork,
		" 10.0.0.0/8":        noNetwork,
		"2001:db8::/129":     noNetwork,
		"fe80::1%eth0":       noNetwork,
		"fe80::%eth0/64":     noNetwork,
		"[2001:db8::1]":      noNetwork,
		"10.0.0.1:80":        noNetwork,
		"UNIX":               noNetwork,
		"*":                  noNetwork,
		"0.0.0.0/0":          everybody,
		"10.0.0.0/0":         everybody,
		"::/0":               everybody,
		"::ffff:0.0.0.0/96":  everybody,
		"10.0.0.1/8":         "is an address within a network; write 10.0.0.0/8 or 10.0.0.1",
		"2001:db8::1/32":     "is an address within a network; write 2001:db8::/32 or 2001:db8::1",
		"::ffff:10.0.0.1/99": "is an address within a network; write 0.0.0.0/3 or 10.0.0.1",
	} {
		c := Config{TrustedProxies: []string{"10.0.0.0/8", text}}
		err := c.finish()
		if want = fmt.Sprintf("%q %s", text, want); !errors.Is(err, penstock.ErrInvalid) || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%q gets the error %v; want %s", text, err, want)
		}
	}
	for _, header := range []string{"X-Real-IP:", "X Real IP", " ", "X-Real-IP\n", "für", "a,b", "@"} {
		c := Config{TrustedProxies: []string{"10.0.0.0/8"}, AddressHeader: header}
		err := c.finish()
		if !errors.Is(err, penstock.ErrInvalid) || !strings.Contains(err.Error(), "cannot be the name of a header; write X-Forwarded-For, Forwarded or X-Real-IP") {
			t.Errorf("the header %q gets the error %v; want how to write it", header, err)
		}
	}
	c := Config{AddressHeader: "X-Real-IP"}
	if err := c.finish(); !errors.Is(err, penstock.ErrInvalid) || !strings.HasSuffix(err.Error(), "no proxy is trusted, so the header is never used; add trusted_proxies") {
		t.Errorf("a header without proxies gets the error %v; want that it is never used", err)
	}
}
