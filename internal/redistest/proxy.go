package redistest

import (
	"bytes"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// A Proxy stands before a server, has every command executed, and can lose
// what the server answers: the one fault after which a caller cannot know
// whether its command ran. It can also part some clients from the server.
//
// Bytes do not vanish from the middle of a connection. So a connection that
// has lost one reply hears nothing more; a client must open another.
type Proxy struct {
	listener net.Listener
	ended    sync.WaitGroup
	lost     atomic.Int64

	mu                sync.Mutex
	network, upstream string
	lose, cut         bool
	only              []byte // lower case
	delay             time.Duration
	parted            []string
	healed            chan struct{} // closed when parted changes
	conns             map[net.Conn]struct{}
	closed            bool
}

// NewProxy listens on a free loopback port and passes everything on to the
// server at upstream, until told otherwise.
func NewProxy(network, upstream string) (*Proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{listener: l, network: network, upstream: upstream, conns: make(map[net.Conn]struct{}), healed: make(chan struct{})}
	p.ended.Go(p.accept)
	return p, nil
}

// Addr is the host:port that clients dial.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Lose swallows replies from now on: the connection stays open, and the caller
// waits until its deadline.
func (p *Proxy) Lose(on bool) { p.set(func() { p.lose = on }) }

// Cut closes the client's connection when a reply arrives for it: the caller
// sees the connection end after its command ran. It goes before Lose.
func (p *Proxy) Cut(on bool) { p.set(func() { p.cut = on }) }

// Only spares connections from Lose and Cut until they send something that
// contains match, in any case, so that handshakes survive; "" spares none.
// Replies still on their way when the match is sent may be lost with its own.
func (p *Proxy) Only(match string) {
	p.set(func() { p.only = bytes.ToLower([]byte(match)) })
}

// Part holds all that passes between the server and the clients whose IP
// addresses are given, in both directions, as a network does that loses every
// packet: nothing arrives, and no connection ends. The next call replaces the
// list; what was held then arrives, however late.
func (p *Proxy) Part(clients ...string) {
	p.set(func() {
		if p.closed {
			return
		}
		p.parted = slices.Clone(clients)
		close(p.healed)
		p.healed = make(chan struct{})
	})
}

// Delay has the first answer on each new connection come that much later:
// making a connection takes time, using it does not.
func (p *Proxy) Delay(by time.Duration) { p.set(func() { p.delay = by }) }

// Lost counts the connections that have lost a reply.
func (p *Proxy) Lost() int64 { return p.lost.Load() }

// Close ends the listener and all connections; a second call does nothing.
func (p *Proxy) Close() {
	p.set(func() {
		if !p.closed {
			close(p.healed)
		}
		p.closed = true
		_ = p.listener.Close()
		for c := range p.conns {
			_ = c.Close()
		}
	})
	p.ended.Wait()
}

// stand moves the proxy before another server; open connections stay.
func (p *Proxy) stand(network, upstream string) {
	p.set(func() { p.network, p.upstream = network, upstream })
}

func (p *Proxy) set(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return // closed
		}
		p.ended.Go(func() { p.serve(client) })
	}
}

// serve ends when either side has closed its connection.
func (p *Proxy) serve(client net.Conn) {
	defer p.drop(client)
	p.pass(client)
	p.mu.Lock()
	network, upstream, delay := p.network, p.upstream, p.delay
	p.mu.Unlock()
	server, err := net.DialTimeout(network, upstream, answerLimit)
	if err != nil {
		return
	}
	defer p.drop(server)
	if !p.keep(client, server) {
		return
	}
	l := &link{proxy: p, client: client, server: server, delay: delay}
	p.ended.Go(l.requests)
	l.replies()
}

// keep remembers connections for Close, unless it has been called.
func (p *Proxy) keep(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		p.conns[c] = struct{}{}
	}
	return !p.closed
}

// pass waits while the client is parted from the server.
func (p *Proxy) pass(client net.Conn) {
	host, _, _ := net.SplitHostPort(client.RemoteAddr().String())
	for {
		p.mu.Lock()
		parted, healed := !p.closed && slices.Contains(p.parted, host), p.healed
		p.mu.Unlock()
		if !parted {
			return
		}
		<-healed
	}
}

func (p *Proxy) drop(c net.Conn) {
	_ = c.Close()
	p.set(func() { delete(p.conns, c) })
}

// A link is one client's connection and the one to the server behind it.
type link struct {
	proxy          *Proxy
	client, server net.Conn
	delay          time.Duration // of the first reply

	matched bool // a request since the last spared reply matches; guarded by proxy.mu
	deaf    bool // a reply was swallowed; only replies uses it
}

func (l *link) requests() {
	defer l.server.Close() // ends replies too
	var recent []byte      // a match may lie across two reads
	buf := make([]byte, 64<<10)
	for {
		n, err := l.client.Read(buf)
		if err != nil {
			return
		}
		l.proxy.pass(l.client)
		recent = l.note(append(recent, buf[:n]...))
		if _, err := l.server.Write(buf[:n]); err != nil {
			return
		}
	}
}

// note looks for a match and returns the end of sent that may begin another.
func (l *link) note(sent []byte) []byte {
	p := l.proxy
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.only) == 0 {
		return nil
	}
	if bytes.Contains(bytes.ToLower(sent), p.only) {
		l.matched = true
	}
	return bytes.Clone(sent[max(0, len(sent)-len(p.only)+1):])
}

func (l *link) replies() {
	buf := make([]byte, 64<<10)
	for first := true; ; first = false {
		n, err := l.server.Read(buf)
		if err != nil {
			return
		}
		if first {
			time.Sleep(l.delay)
		}
		l.proxy.pass(l.client)
		switch l.fate() {
		case swallowed:
			continue
		case severed:
			return
		}
		if _, err := l.client.Write(buf[:n]); err != nil {
			return
		}
	}
}

type fate int

const (
	passed fate = iota
	swallowed
	severed
)

// fate decides what becomes of a reply that has just arrived.
func (l *link) fate() fate {
	p := l.proxy
	p.mu.Lock()
	defer p.mu.Unlock()
	hit := len(p.only) == 0 || l.matched
	switch {
	case p.cut && l.deaf:
		return severed
	case l.deaf:
		return swallowed
	case p.cut && hit:
		p.lost.Add(1)
		return severed
	case p.lose && hit:
		p.lost.Add(1)
		l.deaf = true
		return swallowed
	}
	if !p.lose && !p.cut {
		l.matched = false
	}
	return passed
}
