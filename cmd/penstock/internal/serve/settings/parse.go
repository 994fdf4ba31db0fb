package settings

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/internal/redisclient"
	"github.com/penstock/penstock/internal/regions"
	"github.com/penstock/penstock/internal/syntax"
	"github.com/penstock/penstock/redisstore"
)

// A Form is the texts that a setting accepts. The functions below make the Forms of fields.
type Form struct {
	Value  string // for help: such as duration or text|json; "" for true and false
	Bounds string // of a number, a size or a duration, for the docs: such as "0 to 1h"

	set func(text string) error // parses a text, and sets the field
}

func text(field *string, value string) Form {
	return Form{Value: value, set: func(text string) error {
		*field = text
		return nil
	}}
}

func choice(field *string, choices ...string) Form {
	return Form{Value: strings.Join(choices, "|"), set: func(text string) error {
		if !slices.Contains(choices, text) {
			return fmt.Errorf("it is unknown; write %s", strings.Join(choices, " or "))
		}
		*field = text
		return nil
	}}
}

func toggle(field *bool) Form {
	return Form{set: func(text string) (err error) {
		if *field, err = strconv.ParseBool(text); err != nil {
			return errNotBool
		}
		return nil
	}}
}

var errNotBool = errors.New("it is neither true nor false; write one of them")

// Arguments of duration and size.
const canBeZero, mustNotBeZero = true, false

func duration(field *time.Duration, isZeroValid bool, longest string) Form {
	return bounded(field, "duration", "100ms, 5s or 2m", isZeroValid, longest, time.ParseDuration)
}

func size(field *int64, isZeroValid bool, largest string) Form {
	return bounded(field, "size", "512, 16KB or 8MB", isZeroValid, largest, parseSize)
}

// bounded accepts 0 or more, or more than 0, up to most. The examples show how to write a value.
func bounded[T int64 | time.Duration](field *T, value, examples string, isZeroValid bool, most string, parse func(string) (T, error)) Form {
	largest, err := parse(most)
	if err != nil {
		panic(err)
	}
	bounds := "above 0, up to " + most
	if isZeroValid {
		bounds = "0 to " + most
	}
	return Form{Value: value, Bounds: bounds, set: func(text string) error {
		n, err := parse(text)
		switch {
		case err != nil:
			return fmt.Errorf("it is not a %s; write it like %s", value, examples)
		case n == 0 && !isZeroValid:
			return fmt.Errorf("it must not be 0; write a %s up to %s", value, most)
		case n < 0 || n > largest:
			return fmt.Errorf("it is out of bounds; write a %s (%s)", value, bounds)
		}
		*field = n
		return nil
	}}
}

// units are the suffixes of sizes. Longer ones come first, because "KB" also ends in "B".
var units = []struct {
	name string
	size int64
}{{"GB", 1 << 30}, {"MB", 1 << 20}, {"KB", 1 << 10}, {"B", 1}, {"", 1}}

// parseSize returns a size in bytes. A size that is too large becomes the largest one.
func parseSize(text string) (int64, error) {
	digits, factor := text, int64(1)
	for _, u := range units {
		if number, ok := strings.CutSuffix(strings.ToUpper(text), u.name); ok {
			digits, factor = strings.TrimSpace(number), u.size
			break
		}
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if n > math.MaxInt64/factor {
		return math.MaxInt64, err
	}
	return n * factor, err
}

// count accepts whole numbers.
func count(field *int64, least, most int64) Form {
	return Form{Value: "number", Bounds: fmt.Sprintf("%d to %d", least, most), set: func(text string) error {
		n, err := strconv.ParseInt(text, 10, 64)
		switch {
		case err != nil && !errors.Is(err, strconv.ErrRange):
			return fmt.Errorf("it is not a whole number; write one from %d to %d", least, most)
		case n < least || n > most:
			return fmt.Errorf("it is out of bounds; write a whole number from %d to %d", least, most)
		}
		*field = n
		return nil
	}}
}

// envoyAlgorithm accepts the algorithms that can enforce Envoy's limits. The others return units
// only to the holder that took them, and Envoy names no holder.
func envoyAlgorithm(field **algorithm.Algorithm) Form {
	byTitle := make(map[string]*algorithm.Algorithm)
	var titles []string
	for _, a := range algorithm.All() {
		if !a.OwnsRefunds() {
			byTitle[a.Title()] = a
			titles = append(titles, a.Title())
		}
	}
	var title string
	form := choice(&title, titles...)
	set := form.set
	form.set = func(text string) error {
		err := set(text)
		*field = byTitle[title]
		return err
	}
	return form
}

// callerAddress accepts an address or the path of a Unix socket.
func callerAddress(field *string) Form {
	form := address(field)
	set := form.set
	form.set = func(text string) error {
		path, isUnix := strings.CutPrefix(text, "unix:")
		if !isUnix {
			return set(text)
		}
		if !strings.HasPrefix(path, "/") || len(path) > maxSocketPath {
			return fmt.Errorf("a Unix socket needs an absolute path of at most %d characters; write unix:/run/penstock.sock", maxSocketPath)
		}
		*field = text
		return nil
	}
	return form
}

// maxSocketPath is the longest path of a Unix socket in bytes that all systems accept.
const maxSocketPath = 103

// minTokenLength is the minimum length of a token in bytes.
const minTokenLength = 16

// ErrShortToken is wrapped by the error for a token that is too short.
var ErrShortToken = errors.New("it can be guessed")

func token(field *[]byte) Form {
	return Form{Value: "text", set: func(text string) error {
		if len(text) < minTokenLength {
			return fmt.Errorf("%w; write at least %d characters, such as the output of: openssl rand -hex 16", ErrShortToken, minTokenLength)
		}
		if strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' }) {
			return errors.New("it has characters that some clients cannot send; write letters and digits")
		}
		*field = []byte(text)
		return nil
	}}
}

func address(field *string) Form {
	return Form{Value: "host:port", set: func(text string) error {
		_, port, err := net.SplitHostPort(text)
		if err != nil {
			return errors.New("it is not an address; write host:port, or :port for all addresses of the machine")
		}
		if !isPort(port) {
			return errors.New("its port is not a number from 0 to 65535 (0: any free port)")
		}
		*field = text
		return nil
	}}
}

func isPort(text string) bool {
	_, err := strconv.ParseUint(text, 10, 16)
	return err == nil
}

func (s *Settings) setAdmin(text string) error {
	if text == "off" {
		s.AdminListen = ""
		return nil
	}
	if strings.HasPrefix(text, ":") {
		return fmt.Errorf("without a host, every machine could reach it; write 127.0.0.1%s, or 0.0.0.0%s to allow that", text, text)
	}
	return callerAddress(&s.AdminListen).set(text)
}

func (s *Settings) setUpstream(text string) error {
	if !strings.Contains(text, "://") && !strings.HasPrefix(text, "unix:") {
		return fmt.Errorf("it has no scheme; write http://%s", withoutUser(text))
	}
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return errors.New("it is not a URL; write http://host:port")
	case u.Scheme == "unix" && strings.HasPrefix(u.Path, "/") && u.Host == "":
		// The URL of a socket is valid.
	case u.Scheme == "unix":
		return errors.New("a unix upstream needs the absolute path of a socket; write unix:/run/app.sock")
	case u.Scheme != "http" && u.Scheme != "https" && u.Scheme != "h2c":
		return errors.New("its scheme is not http, https, h2c or unix; write http://host:port")
	case u.Hostname() == "":
		return fmt.Errorf("it has no host; write %s://host:port", u.Scheme)
	case u.Port() != "" && !isPort(u.Port()):
		return errors.New("its port is not a number up to 65535")
	}
	if u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return errors.New("it has a user, a query or a fragment; write only scheme, host, port and path")
	}
	s.Upstream = u
	return nil
}

// setStore checks the form of the URL. The files that it names are read when the store is opened.
func (s *Settings) setStore(text string) error {
	if text == "memory" {
		s.Store = ""
		return nil
	}
	s.Store = text
	if !strings.Contains(text, "://") {
		return errors.New("it is not a URL; write redis://host:6379, rediss://host:6379 for TLS, unix:///path/of.sock, redis+sentinel://host:26379/name, " +
			"redis+cluster://host:6379, or memory")
	}
	return withoutKind(redisclient.CheckURL(text))
}

func (s *Settings) setRegion(text string) error {
	s.Region = text
	return checkRegion(text)
}

func checkRegion(name string) error {
	if !syntax.IsName(name) {
		return errors.New("it cannot be the name of a region; write 1 to 64 of a-z, 0-9, '_', '.' and '-'")
	}
	return nil
}

// nextPeer matches the comma before the next region. A URL may have commas too, between hosts.
var nextPeer = regexp.MustCompile(`,\s*([^,=/]+=[a-z+]+://)`)

// setRegionPeers reads the other regions: name=url, separated by commas. No message shows a URL,
// which may have a password.
func (s *Settings) setRegionPeers(text string) error {
	s.RegionPeers = make(map[string]string)
	urls := make(map[string]string) // the names by URL
	for part := range strings.SplitSeq(nextPeer.ReplaceAllString(text, "\n$1"), "\n") {
		name, url, ok := strings.Cut(strings.TrimSpace(part), "=")
		if !ok || !strings.Contains(url, "://") {
			return errors.New("it is not a list of regions; write us=redis://host:6379,ap=redis://host:6379")
		}
		if err := checkRegion(name); err != nil {
			return err
		}
		if err := redisclient.CheckURL(url); err != nil {
			return fmt.Errorf("region %s: %w", name, withoutKind(err))
		}
		if s.RegionPeers[name] != "" {
			return fmt.Errorf("region %s is named twice; write each once", name)
		}
		if urls[url] != "" {
			return fmt.Errorf("regions %s and %s have one store; each region needs one of its own", urls[url], name)
		}
		s.RegionPeers[name], urls[url] = url, name
	}
	if len(s.RegionPeers) >= regions.MaxRegions {
		return fmt.Errorf("there are %d other regions; the most are %d", len(s.RegionPeers), regions.MaxRegions-1)
	}
	return nil
}

func (s *Settings) setPrefix(text string) error {
	s.Prefix = text
	return withoutKind(redisstore.Options{Prefix: text}.Validate())
}

func (s *Settings) setKeyHashSecret(text string) error {
	s.KeyHashSecret = []byte(text)
	return nil
}

// withoutKind removes the prefix of penstock.ErrInvalid from an error's text, because errors about
// settings have a prefix of their own.
func withoutKind(err error) error {
	if err == nil {
		return nil
	}
	return errors.New(strings.TrimPrefix(err.Error(), penstock.ErrInvalid.Error()+": "))
}

// readPort makes an address from the variable PORT, which platforms set.
func readPort(get func(string) string) (string, bool) {
	port := get("PORT")
	return ":" + port, port != ""
}

// readRedisHost makes a URL from REDIS_HOST and REDIS_PORT. If a Kubernetes service is called
// redis, Kubernetes sets REDIS_PORT to a URL, which is ignored.
func readRedisHost(get func(string) string) (string, bool) {
	host, port := get("REDIS_HOST"), get("REDIS_PORT")
	if !isPort(port) {
		port = "6379"
	}
	return "redis://" + net.JoinHostPort(strings.Trim(host, "[]"), port), host != ""
}

// withoutSecrets returns a store's URL without its user, password and options.
func withoutSecrets(text string) string {
	scheme, rest, ok := strings.Cut(text, "://")
	if !ok {
		return "(hidden)"
	}
	if at := strings.LastIndex(rest, "@"); at >= 0 {
		rest = rest[at+1:]
	}
	rest, _, _ = strings.Cut(rest, "?")
	return scheme + "://" + rest
}

// withoutUser hides what may be a user, a password or a token: the query, and the part before the
// last "@" except its scheme.
func withoutUser(text string) string {
	if at := strings.LastIndex(text, "@"); at >= 0 {
		scheme, _, ok := strings.Cut(text[:at], "://")
		text = "(hidden)" + text[at:]
		if ok && !strings.Contains(scheme, ":") { // text before a colon may be a user, and text after it a password
			text = scheme + "://" + text
		}
	}
	if before, _, ok := strings.Cut(text, "?"); ok {
		text = before + "?(hidden)"
	}
	return text
}

// addressOf returns the host and the port of an upstream, or "" if it is a Unix socket.
func addressOf(upstream *url.URL) string {
	switch {
	case upstream.Scheme == "unix":
		return ""
	case upstream.Port() != "":
		return upstream.Host
	case upstream.Scheme == "https":
		return net.JoinHostPort(upstream.Hostname(), "443")
	}
	return net.JoinHostPort(upstream.Hostname(), "80")
}

// isSameAddress reports whether the service cannot listen on both addresses of this machine: the
// ports are equal, and each host is a loopback address or stands for all addresses. Different
// loopback addresses, such as 127.0.0.1 and 127.0.0.2, count as the same.
func isSameAddress(a, b string) bool {
	if strings.HasPrefix(a, "unix:") {
		return a == b
	}
	hostA, portA, errA := net.SplitHostPort(a)
	hostB, portB, errB := net.SplitHostPort(b)
	if errA != nil || errB != nil {
		return false
	}
	isSamePort := portA == portB && portA != "0" // 0 is any free port
	return isSamePort && isThisMachine(hostA) && isThisMachine(hostB)
}

// isLocal reports whether only this machine can reach an address.
func isLocal(address string) bool {
	if strings.HasPrefix(address, "unix:") {
		return true
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	addr, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && addr.IsLoopback()
}

// isThisMachine reports whether a host is a loopback address or all addresses of this machine.
func isThisMachine(host string) bool {
	addr, err := netip.ParseAddr(host)
	return host == "" || host == "localhost" || err == nil && (addr.IsLoopback() || addr.IsUnspecified())
}
