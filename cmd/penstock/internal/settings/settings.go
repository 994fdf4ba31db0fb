// Package settings decides how the service runs: each setting comes from a flag, else the
// environment, else the policy file's server section, else its default, and remembers which.
package settings

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"
)

// ErrInvalid is wrapped by errors about a setting that cannot be used.
var ErrInvalid = errors.New("invalid configuration")

// ErrFlag is wrapped as well by those about the value of a flag.
var ErrFlag = errors.New("invalid flag")

type flagError struct{ error }

func (e flagError) Is(target error) bool { return target == ErrFlag }
func (e flagError) Unwrap() error        { return e.error }

// Settings of the service. [Load] makes them; [Table] says what each is, its default and its
// bounds.
type Settings struct {
	Config string // the policy's file; "" is none

	Listen       string
	Upstream     *url.URL // scheme http, https, h2c or unix; nil with Demo
	PreserveHost bool
	Demo         bool

	Store        string // a URL with its password; "" is memory. StoreName is fit to be shown
	Prefix       string
	Secret       []byte
	RequireStore bool
	StoreTimeout time.Duration
	Instances    int64 // that there are at least

	Admin string // "" is off
	Pprof bool

	TLSCert, TLSKey, TLSClientCA string // files

	HeaderTimeout, StallTimeout, IdleTimeout time.Duration // Stall: 0 is forever
	MinRate                                  int64         // bytes a second; 0 is any

	UpstreamConnectTimeout, UpstreamHeaderTimeout time.Duration // Header: 0 is forever

	DrainDelay, DrainTimeout time.Duration

	MaxHeader      int64 // bytes
	MaxBody        int64 // bytes; 0 is any
	MaxConnections int64

	LogFormat string // text or json
	LogLevel  string // debug, info, warn or error

	// Unknown are environment variables that begin with PENSTOCK_ and mean nothing: misspelt, most
	// likely.
	Unknown []string

	given map[string]given // by name
}

// given is what was written, and where.
type given struct{ text, source string }

func (g given) from() string {
	switch {
	case g.source != defaults:
		return "from " + g.source
	case g.text == "":
		return "not set"
	}
	return defaults
}

const defaults = "default"

// Source is where a setting's value came from: "--upstream", "PENSTOCK_UPSTREAM", "server.upstream
// in penstock.yaml" or "default".
func (s *Settings) Source(name string) string { return s.given[name].source }

// StoreName is the store without its password and options: "redis://localhost:6379" or "memory".
func (s *Settings) StoreName() string {
	if s.Store == "" {
		return "memory"
	}
	return withoutSecrets(s.Store)
}

// String is a line for each setting: its name, value and source. Secrets are not shown.
func (s *Settings) String() string {
	var b strings.Builder
	for _, row := range Table {
		g := s.given[row.Name]
		text := g.text
		switch {
		case row.Name == "store":
			text = s.StoreName()
		case row.Name == "upstream":
			text = withoutUser(text)
		case row.Secret && text != "":
			text = "(hidden)"
		}
		fmt.Fprintf(&b, "%-26s %-28s %s\n", row.Name, text, g.source)
	}
	return b.String()
}

// check tells what is wrong between settings that are right by themselves.
func (s *Settings) check() error {
	var errs []error
	wrong := func(name, format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s (%s): %s", name, s.given[name].from(), fmt.Sprintf(format, args...)))
	}
	switch {
	case s.Upstream == nil && !s.Demo:
		wrong("upstream", "there is none; write --upstream http://localhost:3000, or --demo for a small one that comes along")
	case s.Upstream != nil && s.Demo:
		wrong("upstream", "--demo (%s) brings its own; leave one of them out", s.Source("demo"))
	case s.Upstream != nil && sameAddress(s.Listen, s.Upstream.Host):
		wrong("upstream", "it is the gate's own address (listen is %s); give one of them another port", s.Listen)
	}
	if (s.TLSCert == "") != (s.TLSKey == "") {
		wrong("tls-cert", "tls-cert and tls-key belong together; write both or neither")
	}
	if s.TLSClientCA != "" && s.TLSCert == "" {
		wrong("tls-client-ca", "it needs tls-cert and tls-key: clients show certificates only to a server that has one")
	}
	if s.RequireStore && s.Store == "" {
		wrong("require-store", "the store is memory, which is always there; set store, or leave require-store out")
	}
	if s.Admin != "" && sameAddress(s.Admin, s.Listen) {
		wrong("admin", "it is the address that requests come in by (listen is %s); give it another port", s.Listen)
	}
	return errors.Join(errs...)
}
