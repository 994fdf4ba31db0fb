// Package settings loads the settings of the service. Each comes from its flag, else the
// environment, else the policy file's server section, else its default. Settings record their
// source.
package settings

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/cmd/penstock/internal/text/redact"
	"github.com/penstock/penstock/internal/rediskeys"
	"github.com/penstock/penstock/internal/regions"
)

// ErrInvalid is wrapped by errors about a setting that cannot be used.
var ErrInvalid = errors.New("invalid configuration")

// ErrFlag is also wrapped by errors about the value of a flag.
var ErrFlag = errors.New("invalid flag")

type flagError struct{ error }

func (e flagError) Is(target error) bool { return target == ErrFlag }
func (e flagError) Unwrap() error        { return e.error }

// Settings of the service. [Load] makes them. [Table] has the meaning, default and bounds of each.
type Settings struct {
	Config string // the policy file; "" for none

	Listen       string
	Upstream     *url.URL // scheme http, https, h2c or unix; nil with Demo, or if there is no proxy
	PreserveHost bool
	Demo         bool
	DemoTraffic  bool // the service sends requests to itself; only with Demo

	Store         string // a URL that may have a password; "" is memory. Messages show StoreName instead
	Prefix        string
	KeyHashSecret []byte
	RequireStore  bool
	StoreTimeout  time.Duration
	MinInstances  int64

	Region                      string            // "" if there is none
	RegionPeers                 map[string]string // the URLs of the other regions' stores, by name
	RegionInterval, RegionDelay time.Duration

	API, RESP, GRPC                             string // "" is off
	CallerToken, OperatorToken                  []byte
	AllowOpenCallers, AllowCallerLimits         bool
	CallerTLSCert, CallerTLSKey, CallerClientCA string // files

	APIWithoutTLS bool

	EnvoyXDS, EnvoyXDSNode, EnvoyXDSMetadata, EnvoyXDSServerName string // EnvoyXDS: "" is off
	EnvoyXDSCA, EnvoyXDSCert, EnvoyXDSKey                        string // files
	EnvoyXDSOptional                                             bool

	EnvoyConfig                                                       string // a folder; "" is off
	EnvoyMode, EnvoyReports, EnvoyOnFailure, EnvoyHeaders             string
	EnvoyAlgorithm                                                    *algorithm.Algorithm
	EnvoyMetadata, EnvoyShadowMode, EnvoyQuotaMode, EnvoyMergeDomains bool

	AdminListen                              string // "" is off
	AdminTLSCert, AdminTLSKey, AdminClientCA string // files
	ShownIdentities                          string // off, masked or full
	NearLimit                                int64  // percent
	Pprof                                    bool

	TLSCert, TLSKey, TLSClientCA string // files

	HeaderTimeout, StallTimeout, IdleTimeout time.Duration // StallTimeout: 0 is unlimited
	MinRate                                  int64         // bytes/s; 0 is unlimited

	UpstreamConnectTimeout, UpstreamHeaderTimeout time.Duration // UpstreamHeaderTimeout: 0 is unlimited

	DrainDelay, DrainTimeout time.Duration

	MaxHeader      int64 // bytes
	MaxBody        int64 // bytes; 0 is unlimited
	MaxConnections int64

	LogFormat string // text or json
	LogLevel  string // debug, info, warn or error
	DenialLog string // off, sampled or all
	AuditFile string // "" for none

	// Unknown are environment variables that begin with PENSTOCK_ and are not settings. They are
	// probably misspelled.
	Unknown []string

	// HasLonePort is true if no store is named, although the variable REDIS_PORT has a port. The
	// variable has no effect without REDIS_HOST.
	HasLonePort bool

	given map[string]givenValue // by the names of settings
}

type givenValue struct{ text, source string }

// from returns the source as error messages show it.
func (g givenValue) from() string {
	switch {
	case g.source != fromDefault:
		return "from " + g.source
	case g.text == "":
		return "not set"
	}
	return fromDefault
}

const fromDefault = "default"

// Source returns the source of a setting's value: "--upstream", "PENSTOCK_UPSTREAM",
// "server.upstream in penstock.yaml" or "default".
func (s *Settings) Source(name string) string { return s.given[name].source }

// StoreName returns the store without password and options: "redis://localhost:6379" or "memory".
func (s *Settings) StoreName() string {
	if s.Store == "" {
		return "memory"
	}
	return withoutSecrets(s.Store)
}

// String returns a line for each setting: its name, value and source. It shows no secrets.
func (s *Settings) String() string {
	var b strings.Builder
	for _, row := range Table {
		value := s.given[row.Name]
		text := value.text
		switch {
		case row.Name == "store":
			text = s.StoreName()
		case row.Name == "upstream":
			text = withoutUser(text)
		case row.IsSecret && text != "":
			text = "(hidden)"
		}
		fmt.Fprintf(&b, "%-26s %-28s %s\n", row.Name, text, value.source)
	}
	return b.String()
}

// check finds settings that are valid by themselves, but not together.
func (s *Settings) check() error {
	var errs []error
	report := func(name, format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s (%s): %s", name, s.given[name].from(), fmt.Sprintf(format, args...)))
	}
	switch {
	case !s.HasProxy() && len(s.CallerListeners()) == 0:
		report("upstream", "write --upstream http://localhost:3000, --demo to try it with a built-in upstream, or --api, --grpc or --resp to only answer other proxies, gRPC clients or Redis clients")
	case !s.HasProxy() && s.Source("listen") == "--listen":
		report("listen", "it is the address of the proxy, which needs an upstream; write --upstream, or omit --listen")
	case s.Upstream != nil && s.Demo:
		report("upstream", "--demo (%s) has its own upstream; omit one of them", s.Source("demo"))
	case s.Upstream != nil && isSameAddress(s.Listen, addressOf(s.Upstream)):
		report("upstream", "it is the service's own address (--listen is %s); change one of the ports", s.Listen)
	}
	for _, files := range []struct{ prefix, cert, key, caName, ca string }{
		{prefix: "tls", cert: s.TLSCert, key: s.TLSKey, caName: "tls-client-ca", ca: s.TLSClientCA},
		{prefix: "caller-tls", cert: s.CallerTLSCert, key: s.CallerTLSKey, caName: "caller-client-ca", ca: s.CallerClientCA},
		{prefix: "admin-tls", cert: s.AdminTLSCert, key: s.AdminTLSKey, caName: "admin-client-ca", ca: s.AdminClientCA},
	} {
		if (files.cert == "") != (files.key == "") {
			report(files.prefix+"-cert", "--%s-cert and --%s-key belong together; write both or neither", files.prefix, files.prefix)
		}
		if files.ca != "" && files.cert == "" {
			report(files.caName, "it needs --%s-cert and --%s-key: client certificates work only with TLS", files.prefix, files.prefix)
		}
	}
	if s.DemoTraffic && (!s.Demo || s.TLSCert != "") {
		report("demo-traffic", "it is for the demo without TLS; write --demo, and omit --tls-cert")
	}
	s.checkRegions(report)
	if s.RequireStore && s.Store == "" {
		report("require-store", "the store is memory, which is always up; write --store, or omit --require-store")
	}
	if len(s.OperatorToken) > 0 && bytes.Equal(s.OperatorToken, s.CallerToken) {
		report("operator-token", "it is the caller token, so every caller would be an operator; write another one")
	}
	if s.EnvoyConfig != "" && s.API == "" && s.GRPC == "" {
		report("envoy-config", "no caller can reach it; write --grpc :8081, with --caller-token or --allow-open-callers, or --grpc 127.0.0.1:8081")
	}
	if s.EnvoyXDS != "" {
		s.checkXDS(report)
	}
	if s.EnvoyMode == "exact" && s.EnvoyAlgorithm != algorithm.FixedWindow {
		report("envoy-algorithm", "mode exact has fixed windows only; omit --envoy-algorithm, or write --envoy-mode atomic")
	}
	s.checkListeners(report)
	return errors.Join(errs...)
}

func (s *Settings) checkRegions(report func(name, format string, args ...any)) {
	if len(s.RegionPeers) == 0 {
		return
	}
	switch {
	case s.Region == "":
		report("region", "this region needs a name too; write --region, with the name that the others have for it in their --region-peers")
	case s.Store == "":
		report("region-peers", "the store is memory, which other regions cannot read; write --store")
	}
	longest := regions.Options{Every: s.RegionInterval}.MaxRedisDelay()
	if s.Source("region-delay") != fromDefault && s.RegionDelay > longest {
		report("region-delay", "with --region-interval %v, regions lose contact if a message takes longer than %v; write a longer --region-interval", s.RegionInterval, longest)
	}
	for _, name := range slices.Sorted(maps.Keys(s.RegionPeers)) {
		switch text := s.RegionPeers[name]; {
		case name == s.Region:
			report("region-peers", "%s is this region itself; write only the others", name)
		case text == s.Store:
			report("region-peers", "region %s has the store of this region; each region needs one of its own", name)
		}
	}
}

// Regions returns how the regions exchange. If this one has a name and no others are set, there is
// one region.
func (s *Settings) Regions() regions.Setup {
	setup := regions.Setup{Every: s.RegionInterval, Delay: s.RegionDelay}
	if s.Region != "" || len(s.RegionPeers) > 0 {
		setup.Count = 1 + len(s.RegionPeers)
	}
	return setup
}

// checkXDS finds what is missing for a control plane.
func (s *Settings) checkXDS(report func(name, format string, args ...any)) {
	_, _, err := net.SplitHostPort(s.EnvoyXDS)
	switch {
	case err != nil:
		report("envoy-xds", "it is not an address; write host:port, such as envoy-gateway:18001")
	case s.EnvoyConfig != "":
		report("envoy-xds", "the limits come from --envoy-config (%s) already; omit one of them", s.Source("envoy-config"))
	case s.API == "" && s.GRPC == "":
		report("envoy-xds", "no caller can reach it; write --grpc :8081, with --caller-token or --allow-open-callers, or --grpc 127.0.0.1:8081")
	case (s.EnvoyXDSCert == "") != (s.EnvoyXDSKey == ""):
		report("envoy-xds-cert", "--envoy-xds-cert and --envoy-xds-key belong together; write both or neither")
	case s.EnvoyXDSCA == "" && s.EnvoyXDSCert != "":
		report("envoy-xds-ca", "a certificate works only with TLS; write --envoy-xds-ca")
	}
	if _, err := s.XDSMetadata(); err != nil {
		report("envoy-xds-metadata", "%v", err)
	}
}

// XDSMetadata returns the metadata for the control plane.
func (s *Settings) XDSMetadata() (map[string]string, error) {
	all := make(map[string]string)
	for part := range strings.SplitSeq(s.EnvoyXDSMetadata, ",") {
		name, value, ok := strings.Cut(part, "=")
		if part == "" {
			continue
		}
		if !ok || name == "" {
			return nil, fmt.Errorf("%q is not of the form name=value; write zone=a,rack=b", part)
		}
		all[name] = value
	}
	return all, nil
}

// HasProxy reports whether the service is a proxy in front of an upstream.
func (s *Settings) HasProxy() bool { return s.Upstream != nil || s.Demo }

// NeedsPolicy reports whether the service needs a policy. It needs none if it has only Redis
// clients, which can send limits of their own, if callers may state limits, or if Envoy's limits
// come from files or a control plane.
func (s *Settings) NeedsPolicy() bool {
	hasCallers := s.API != "" || s.GRPC != ""
	hasOnlyRESP := s.RESP != "" && !hasCallers
	hasCallerLimits := s.AllowCallerLimits && hasCallers
	return s.HasProxy() || !hasOnlyRESP && !hasCallerLimits && !s.HasEnvoyLimits()
}

// HasEnvoyLimits reports whether Envoy's limits come from files or a control plane.
func (s *Settings) HasEnvoyLimits() bool { return s.EnvoyConfig != "" || s.EnvoyXDS != "" }

type Listener struct{ Name, Address string }

// CallerListeners returns the listeners where callers get decisions. Callers are programs, such as
// other proxies, which send calls about the requests of their clients.
func (s *Settings) CallerListeners() []Listener {
	all := []Listener{{"api", s.API}, {"grpc", s.GRPC}, {"resp", s.RESP}}
	return slices.DeleteFunc(all, func(l Listener) bool { return l.Address == "" })
}

// AdmitsCallersWithoutToken reports whether a listener accepts callers without a token. It does if
// no caller-token is set and one of these is true: only this machine can reach the listener,
// callers need a certificate, or allow-open-callers is set.
func (s *Settings) AdmitsCallersWithoutToken(l Listener) bool {
	return len(s.CallerToken) == 0 && (s.AllowOpenCallers || s.CallerClientCA != "" || isLocal(l.Address))
}

func (s *Settings) IsAdminLocal() bool { return isLocal(s.AdminListen) }

// checkListeners finds listeners with the same address, and listeners that would accept anyone's
// calls. The listener api needs no token for forward-auth, which accepts only trusted proxies.
func (s *Settings) checkListeners(report func(name, format string, args ...any)) {
	all := s.CallerListeners()
	for _, l := range all {
		isUnprotected := len(s.CallerToken) == 0 && !s.AdmitsCallersWithoutToken(l)
		if isUnprotected && l.Name != "api" {
			report(l.Name, "anyone who reaches %s could use up the limits of others; write --caller-token or --caller-client-ca, 127.0.0.1 as the host, "+
				"or --allow-open-callers if the network protects it", l.Address)
		}
	}
	if s.HasProxy() {
		all = append([]Listener{{"listen", s.Listen}}, all...)
	}
	if s.AdminListen != "" {
		all = append(all, Listener{"admin-listen", s.AdminListen})
	}
	for i, l := range all {
		for _, other := range all[:i] {
			if isSameAddress(l.Address, other.Address) {
				report(l.Name, "--%s has the same address (%s); use another port", other.Name, other.Address)
			}
		}
	}
}

// SharedSecret derives a secret from all secrets that instances share. Without any, it is random.
func (s *Settings) SharedSecret() []byte {
	if len(s.OperatorToken)+len(s.KeyHashSecret)+len(s.CallerToken) == 0 {
		return []byte(rand.Text())
	}
	h := sha256.New()
	for _, secret := range [][]byte{[]byte("penstock ids"), s.OperatorToken, s.KeyHashSecret, s.CallerToken} {
		h.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(secret))))
		h.Write(secret)
	}
	return h.Sum(nil)
}

// Identities returns how identities are shown. Instances with the same shared secret show the same
// masks. The name of a key is how the store writes it.
func (s *Settings) Identities(shared []byte) *redact.Identities {
	masks := sha256.Sum256(append([]byte("penstock masks"), shared...))
	return &redact.Identities{
		Show:   s.ShownIdentities,
		Secret: masks[:],
		Key:    rediskeys.KeyOf,
		Name:   func(key string) string { return string(rediskeys.NewNames(s.KeyHashSecret).Append(nil, key)) },
	}
}
