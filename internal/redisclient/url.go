package redisclient

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/boundedfile"
	"github.com/redis/rueidis"
)

// ParseURL parses the URL of a store; redisstore.Open documents the forms. It reads the files that
// the URL names. Some of them are read again for each new connection.
func ParseURL(text string) (rueidis.ClientOption, error) {
	return parse(text, func(name string) ([]byte, error) { return boundedfile.Read(name, maxFileBytes) })
}

// maxFileBytes bounds a file that a URL names, in bytes.
const maxFileBytes = 1 << 20

// CheckURL returns the error that ParseURL would return, but reads no file.
func CheckURL(text string) error {
	_, err := parse(text, nil)
	return err
}

// parse parses a URL. It reads the files of passwords by readFile, unless that is nil.
func parse(text string, readFile func(string) ([]byte, error)) (rueidis.ClientOption, error) {
	option, err := parseURL(text, readFile)
	if err != nil {
		if mayShowPassword(text) {
			err = errMalformed
		}
		return option, fmt.Errorf("%w: redis URL: %w", penstock.ErrInvalid, err)
	}
	return option, nil
}

// sentinelInterval is how often the client queries the Sentinels for the primary, besides listening
// to their messages.
const sentinelInterval = time.Second

var errMalformed = errors.New("the user, password, path or options are malformed; percent-encode special characters")

// mayShowPassword reports whether the text that was read as path or options may be a part of a
// password that contains '/', '?' or '#'.
func mayShowPassword(text string) bool {
	_, rest, _ := strings.Cut(text, "://")
	authority, tail := cutAuthority(rest)
	return !strings.Contains(authority, "@") && strings.Contains(tail, "@")
}

func parseURL(text string, readFile func(string) ([]byte, error)) (option rueidis.ClientOption, err error) {
	transport, form, rest, err := parseScheme(text)
	if err != nil {
		return option, err
	}
	authority, tail := cutAuthority(rest)
	// net/url accepts one host only, so the hosts are parsed here.
	userinfo, hosts := "", authority
	if at := strings.LastIndex(authority, "@"); at >= 0 {
		userinfo, hosts = authority[:at+1], authority[at+1:]
	}
	u, err := url.Parse(transport + "://" + userinfo + "host" + tail)
	if err != nil || u.Fragment != "" {
		return option, errMalformed
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return option, errMalformed
	}
	option = rueidis.ClientOption{DisableCache: true, DisableRetry: true, ClientName: "penstock"}
	option.Dialer.Timeout = time.Second
	option.Dialer.KeepAlive = time.Second
	option.ConnWriteTimeout = time.Second
	option.Username = u.User.Username()
	option.Password, _ = u.User.Password()

	database := strings.TrimPrefix(u.Path, "/")
	switch {
	case transport == "unix":
		database = "" // the path is that of the socket
		err = setSocket(&option, u.Path, hosts)
	case form == "sentinel":
		if database, err = setSentinels(&option, database, query); err == nil {
			err = setHosts(&option, hosts, form, "26379")
		}
	default:
		err = setHosts(&option, hosts, form, "6379")
	}
	if err != nil {
		return option, err
	}
	if query.Has("db") {
		database = query.Get("db")
	}
	if database != "" {
		if option.SelectDB, err = strconv.Atoi(database); err != nil || option.SelectDB < 0 {
			return option, fmt.Errorf("the database is %q; it must be a whole number from 0 on", database)
		}
	}
	if option.SelectDB != 0 && form == "cluster" {
		return option, errors.New("a Cluster has only the database 0")
	}
	return option, parseOptions(&option, query, transport == "rediss", readFile)
}

// parseScheme reads redis+sentinel:// as transport redis and form sentinel. The form of one server
// is "". rest is what follows ://.
func parseScheme(text string) (transport, form, rest string, err error) {
	scheme, rest, ok := strings.Cut(text, "://")
	if !ok || strings.ContainsAny(scheme, ":/?#@") {
		return "", "", "", errors.New("it has no scheme; write redis://host:6379")
	}
	transport, form, _ = strings.Cut(scheme, "+")
	transport = strings.Replace(transport, "valkey", "redis", 1)
	if scheme == "redis-sentinel" || scheme == "rediss-sentinel" {
		transport, form, _ = strings.Cut(scheme, "-")
	}
	isKnownTransport := slices.Contains([]string{"redis", "rediss", "unix"}, transport)
	isKnownForm := slices.Contains([]string{"", "cluster", "sentinel"}, form)
	if !isKnownTransport || !isKnownForm || transport == "unix" && form != "" {
		return "", "", "", fmt.Errorf("the scheme %q is not known; there are redis, rediss, unix, redis+sentinel and redis+cluster, and valkey for redis", scheme)
	}
	return transport, form, rest, nil
}

func setSocket(option *rueidis.ClientOption, path, hosts string) error {
	if path == "" || hosts != "" {
		return errors.New("a unix URL names a socket by its absolute path: unix:///run/redis.sock")
	}
	option.InitAddress = []string{path}
	option.DialCtxFn = func(ctx context.Context, path string, dialer *net.Dialer, _ *tls.Config) (net.Conn, error) {
		return dialer.DialContext(ctx, "unix", path)
	}
	return nil
}

// setSentinels reads the primary's name from a path, and returns the database after it.
func setSentinels(option *rueidis.ClientOption, path string, query url.Values) (database string, err error) {
	option.Sentinel.MasterSet, database, _ = strings.Cut(path, "/")
	if option.Sentinel.MasterSet == "" {
		return "", errors.New("a sentinel URL names the primary in its path: redis+sentinel://host:26379/mymaster")
	}
	// Sentinels send one message about a new primary, and none if only its address changes. A client
	// that only listens may keep the old address forever.
	option.Sentinel.TopologyRefreshInterval = sentinelInterval
	option.Sentinel.Username, option.Sentinel.Password = query.Get("sentinel_username"), query.Get("sentinel_password")
	return database, nil
}

func setHosts(option *rueidis.ClientOption, hosts, form, port string) (err error) {
	if option.InitAddress, err = addresses(hosts, port); err != nil {
		return err
	}
	if len(option.InitAddress) > 1 && form == "" {
		return errors.New("several hosts are given; write redis+cluster:// or redis+sentinel://")
	}
	return nil
}

// cutAuthority splits the text after :// into the user with the hosts, and the rest: the path, the
// query and the fragment.
func cutAuthority(rest string) (authority, tail string) {
	if i := strings.IndexAny(rest, "/?#"); i >= 0 {
		return rest[:i], rest[i:]
	}
	return rest, ""
}

// addresses reads host:port,… Errors show only the part of a host before the first colon, because
// the rest may be a password whose @host was forgotten.
func addresses(hosts, defaultPort string) ([]string, error) {
	var list []string
	for _, host := range strings.Split(hosts, ",") {
		name, port, err := net.SplitHostPort(host)
		if err != nil { // no port
			name, port = strings.Trim(host, "[]"), defaultPort
		}
		if name == "" {
			return nil, errors.New("a host is empty")
		}
		if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
			first, _, _ := strings.Cut(name, ":")
			return nil, fmt.Errorf("the port of host %q is not a number from 1 to 65535", first)
		}
		if _, err := netip.ParseAddr(name); err != nil && strings.ContainsAny(name, ":[] ") {
			first, _, _ := strings.Cut(name, ":")
			return nil, fmt.Errorf("%q is not a valid host; write an IPv6 address in brackets: [2001:db8::1]:6379", first)
		}
		list = append(list, net.JoinHostPort(name, port))
	}
	return list, nil
}

var urlOptions = []string{"db", "password_file", "dial_timeout", "ca", "cert", "key", "server_name", "insecure_skip_verify",
	"sentinel_username", "sentinel_password", "sentinel_password_file"}

// parseOptions reads the options, and the files that they name if readFile is not nil.
func parseOptions(option *rueidis.ClientOption, query url.Values, hasTLS bool, readFile func(string) ([]byte, error)) error {
	for name := range query {
		if !slices.Contains(urlOptions, name) {
			return fmt.Errorf("the option %q is not known; there are %s", name, strings.Join(urlOptions, ", "))
		}
	}
	if text := query.Get("dial_timeout"); text != "" {
		timeout, err := time.ParseDuration(text)
		if err != nil || timeout <= 0 {
			return fmt.Errorf("dial_timeout is %q; write a duration such as 500ms or 5s", text)
		}
		option.Dialer.Timeout = timeout
	}
	option.Sentinel.Dialer = option.Dialer
	if err := setPasswordFiles(option, query, readFile); err != nil {
		return err
	}
	if hasTLS {
		return parseTLS(option, query, readFile)
	}
	for _, name := range []string{"ca", "cert", "key", "server_name", "insecure_skip_verify"} {
		if query.Has(name) {
			return fmt.Errorf("the option %q needs TLS: write rediss:// for redis://", name)
		}
	}
	return nil
}

func parseTLS(option *rueidis.ClientOption, query url.Values, readFile func(string) ([]byte, error)) error {
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: query.Get("server_name")} // if empty: the host that is dialed
	if text := query.Get("insecure_skip_verify"); text != "" {
		isInsecure, err := strconv.ParseBool(text)
		if err != nil {
			return fmt.Errorf("insecure_skip_verify is %q; it must be true or false", text)
		}
		config.InsecureSkipVerify = isInsecure
	}
	if name := query.Get("ca"); name != "" && readFile != nil {
		pem, err := readFile(name)
		if err != nil {
			return fmt.Errorf("ca: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return fmt.Errorf("ca: %s holds no certificate in PEM form", name)
		}
	}
	if query.Has("cert") != query.Has("key") {
		return errors.New("cert and key belong together; write both or neither")
	}
	if query.Has("cert") && readFile != nil {
		// The files are read again for each new connection, because certificates end.
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			pair, err := keyPair(query.Get("cert"), query.Get("key"), readFile)
			if err != nil {
				return nil, NotSent(fmt.Errorf("cert and key: %w", err))
			}
			return &pair, nil
		}
		if _, err := keyPair(query.Get("cert"), query.Get("key"), readFile); err != nil {
			return fmt.Errorf("cert and key: %w", err)
		}
	}
	option.TLSConfig = config
	if option.Sentinel.MasterSet != "" {
		option.Sentinel.TLSConfig = config
	}
	return nil
}

func keyPair(cert, key string, readFile func(string) ([]byte, error)) (tls.Certificate, error) {
	public, err := readFile(cert)
	if err != nil {
		return tls.Certificate{}, err
	}
	private, err := readFile(key)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.X509KeyPair(public, private)
}
