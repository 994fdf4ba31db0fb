package httplimit

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/penstock/penstock"
)

func TestAddressHeaderIsFoundInAnyCase(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ written, want string }{
		{written: "", want: "X-Forwarded-For"},
		{written: "x-real-ip", want: "X-Real-Ip"}, // as http.Header has it
	} {
		config := Config{TrustedProxies: []string{"10.0.0.0/8"}, AddressHeader: c.written}
		if err := config.finish(); err != nil || config.AddressHeader != c.want {
			t.Errorf("address_header %q: the header is %q with the error %v; want %q", c.written, config.AddressHeader, err, c.want)
		}
	}
}

func TestWrongProxiesAreRejectedWithAReason(t *testing.T) {
	t.Parallel()
	const notANetwork = "is not a network; write one such as 10.0.0.0/8, 2001:db8::/32 or 192.0.2.1, or unix"
	const tooWide = "would let every client choose its address; write the networks of your proxies"
	for text, want := range map[string]string{
		"":                   notANetwork,
		"proxy.example":      notANetwork,
		"10.0.0":             notANetwork,
		"10.0.0.0/33":        notANetwork,
		"10.0.0.0/":          notANetwork,
		"10.0.0.0/08":        notANetwork,
		"10.0.0.1-10.0.0.9":  notANetwork,
		"10.0.0.0/8,":        notANetwork,
		" 10.0.0.0/8":        notANetwork,
		"2001:db8::/129":     notANetwork,
		"fe80::1%eth0":       notANetwork,
		"fe80::%eth0/64":     notANetwork,
		"[2001:db8::1]":      notANetwork,
		"10.0.0.1:80":        notANetwork,
		"UNIX":               notANetwork,
		"*":                  notANetwork,
		"0.0.0.0/0":          tooWide,
		"10.0.0.0/0":         tooWide,
		"::/0":               tooWide,
		"::ffff:0.0.0.0/96":  tooWide,
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
