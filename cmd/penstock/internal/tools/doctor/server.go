package doctor

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/penstock/penstock/cmd/penstock/internal/text/rediscli"
	"github.com/penstock/penstock/internal/redisclient"
	"github.com/penstock/penstock/internal/redisinfo"
	"github.com/penstock/penstock/redisstore"
)

// A server is one process of Redis, Valkey or Sentinel.
type server struct {
	address   string // host:port, or the path of a socket
	isReplica bool   // according to the Cluster or the Sentinels
	ranges    []slotRange

	connector *redisclient.Connector
	client    rueidis.Client // nil if the server cannot be reached
	err       error          // why the server cannot be reached, or why a Sentinel names no primary
	dialed    dialed
	waited    time.Duration // for the connection and the first reply

	slotsError     string // why CLUSTER SLOTS failed
	primaryAddress string // of a Sentinel: the primary that it names

	hello   map[string]string // its reply to HELLO, which needs no right
	info    redisinfo.Fields  // its reply to INFO; nil if there is none
	infoErr error             // why INFO failed
	offset  offset            // of its clock
	sample  *sample
}

type slotRange struct{ first, last int64 }

// dialed describes the latest connection: the time to connect, and the state of TLS.
type dialed struct {
	mu     sync.Mutex
	isOpen bool // a connection was made
	took   time.Duration
	tls    *tls.ConnectionState
}

// connect connects to a server, with the login and the TLS settings of the option.
func (d *doctor) connect(ctx context.Context, option rueidis.ClientOption, address string) *server {
	s := &server{address: address}
	option.InitAddress, option.ForceSingleClient, option.Sentinel = []string{address}, true, rueidis.SentinelOption{}
	option.ConnWriteTimeout = commandTimeout
	option.Dialer.KeepAlive = time.Minute // otherwise rueidis sends PING each second
	dial := option.DialCtxFn
	option.DialCtxFn = func(ctx context.Context, address string, dialer *net.Dialer, config *tls.Config) (net.Conn, error) {
		begin := time.Now()
		conn, err := dialWith(ctx, dial, address, dialer, config)
		if err == nil {
			s.dialed.record(conn, time.Since(begin))
		}
		return conn, err
	}
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	begin := time.Now()
	s.connector = redisclient.Connect(option, newReplyError)
	s.client, s.err = s.connector.Get(ctx)
	s.waited = time.Since(begin)
	if s.err != nil {
		if greeting := greetingOf(ctx, &option, dial, address); greeting != "" {
			s.err = errors.New(greeting)
		}
		return s
	}
	s.hello, s.err = d.sendHello(ctx, s)
	if s.err != nil {
		s.client = nil
	}
	return s
}

func newReplyError(text string) error { return redisstore.ReplyError(text) }

// greetingOf returns the error that a server sends to a new connection, such as that there are too
// many clients. A client that writes first may not receive this error, so greetingOf only reads.
func greetingOf(ctx context.Context, option *rueidis.ClientOption, dial dialFunc, address string) string {
	const greetingTimeout = 300 * time.Millisecond
	conn, err := dialWith(ctx, dial, address, &option.Dialer, option.TLSConfig)
	if err != nil {
		return ""
	}
	defer conn.Close()
	text := make([]byte, 200) // longer than any such error
	if conn.SetReadDeadline(time.Now().Add(greetingTimeout)) != nil {
		return ""
	}
	n, _ := conn.Read(text)
	line, _, _ := strings.Cut(string(text[:n]), "\r\n")
	line, _, _ = strings.Cut(line, ". ")
	greeting, isError := strings.CutPrefix(line, "-")
	if !isError {
		return ""
	}
	return strings.TrimPrefix(greeting, "ERR ")
}

type dialFunc = func(ctx context.Context, address string, dialer *net.Dialer, config *tls.Config) (net.Conn, error)

// dialWith connects to an address. dial is nil for TCP.
func dialWith(ctx context.Context, dial dialFunc, address string, dialer *net.Dialer, config *tls.Config) (net.Conn, error) {
	switch {
	case dial != nil:
		return dial(ctx, address, dialer, config)
	case config == nil:
		return dialer.DialContext(ctx, "tcp", address)
	}
	return (&tls.Dialer{NetDialer: dialer, Config: config}).DialContext(ctx, "tcp", address)
}

func (d *dialed) record(conn net.Conn, took time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.isOpen, d.took = true, took
	if wrapped, ok := conn.(interface{ NetConn() net.Conn }); ok {
		if _, isTLS := conn.(*tls.Conn); !isTLS {
			conn = wrapped.NetConn()
		}
	}
	if tlsConn, ok := conn.(*tls.Conn); ok {
		state := tlsConn.ConnectionState()
		d.tls = &state
	}
}

// isHanging reports whether the server accepted a connection, but did not answer in time.
func (s *server) isHanging() bool {
	s.dialed.mu.Lock()
	defer s.dialed.mu.Unlock()
	timeout, ok := errors.AsType[interface {
		error
		Timeout() bool
	}](s.err)
	return s.dialed.isOpen && ok && timeout.Timeout()
}

// sendHello sends HELLO, which needs no right, and returns its reply: version, mode and role.
func (d *doctor) sendHello(ctx context.Context, s *server) (map[string]string, error) {
	fields, err := d.do(ctx, s, "HELLO").ToMap()
	if err != nil {
		return nil, err
	}
	reply := make(map[string]string)
	for name, value := range fields {
		if text, err := value.ToString(); err == nil {
			reply[name] = text
		}
	}
	return reply, nil
}

// readInfo reads INFO. Afterwards info or infoErr is set.
func (d *doctor) readInfo(ctx context.Context, s *server) {
	text, err := d.do(ctx, s, "INFO", "all").ToString()
	s.info, s.infoErr = redisinfo.Parse(text), err
	if err != nil {
		s.info = nil
	}
}

func (s *server) hasSlot(slot uint16) bool {
	return slices.ContainsFunc(s.ranges, func(r slotRange) bool { return int64(slot) >= r.first && int64(slot) <= r.last })
}

// cli returns redis-cli with the options that reach a database of the server.
func (s *server) cli(hasTLS bool, database int) string {
	return rediscli.Server{Address: s.address, HasTLS: hasTLS, Database: database}.Command()
}

func (s *server) isValkey() bool {
	return s.hello["server"] == "valkey" || s.info["valkey_version"] != ""
}

// version returns the server's name and version, such as "Redis 7.2.4".
func (s *server) version() string {
	if v := s.info["valkey_version"]; v != "" {
		return "Valkey " + v
	}
	if s.isValkey() {
		return "Valkey " + s.hello["version"]
	}
	return "Redis " + s.hello["version"]
}

// role returns the server's role in its reply to HELLO: master or replica.
func (s *server) role() string { return s.hello["role"] }
