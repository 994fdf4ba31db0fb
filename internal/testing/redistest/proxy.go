package redistest

import (
	"bytes"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// A Proxy is between clients and a server. It forwards every command, and can lose replies. After a
// lost reply, a caller cannot know whether its command ran. The Proxy can also block the traffic of
// some clients.
//
// A TCP connection never loses bytes in the middle. So a connection that has lost one reply
// receives nothing more, and the client must open another.
type Proxy struct {
	listener   net.Listener
	goroutines sync.WaitGroup
	lost       atomic.Int64

	mu                sync.Mutex
	network, upstream string
	isDropping        bool
	isCutting         bool
	firstLost         chan struct{}               // for CutOnce: closed when a reply is lost, which ends the cut
	replacement       string                      // the argument of ReplaceReply; "" after it was sent
	mangle            func(replies []byte) []byte // the argument of MangleReplies
	onlyMatching      []byte                      // the argument of Only, in lower case
	firstReplyDelay   time.Duration               // of the first reply of a connection
	blockedIPs        []string                    // of clients
	blockedChanged    chan struct{}               // closed when blockedIPs changes
	conns             map[net.Conn]struct{}
	isClosed          bool
}

// NewProxy listens on a free loopback port, and forwards everything to the server at upstream. The
// methods of the Proxy change that.
func NewProxy(network, upstream string) (*Proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{listener: l, network: network, upstream: upstream, conns: make(map[net.Conn]struct{}), blockedChanged: make(chan struct{})}
	p.goroutines.Go(p.accept)
	return p, nil
}

// Addr returns the host:port that clients dial.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// DropReplies makes the proxy discard replies, until DropReplies(false). The connection stays open,
// and the caller waits until its deadline.
func (p *Proxy) DropReplies(isOn bool) { p.set(func() { p.isDropping = isOn }) }

// CutOnReply makes the proxy close a client's connection when the server replies to it, until
// CutOnReply(false). So the connection ends after the server has run the command. CutOnReply has
// priority over DropReplies.
func (p *Proxy) CutOnReply(isOn bool) { p.set(func() { p.isCutting = isOn }) }

// CutOnce cuts one connection at its next reply, as CutOnReply does. The wait for this reply begins
// at a random time within 4 ms. CutOnce gives up after 20 ms without a reply, or when stop is
// closed.
func (p *Proxy) CutOnce(stop <-chan struct{}) {
	select {
	case <-stop:
		return
	case <-time.After(rand.N(4 * time.Millisecond)):
	}
	lost := make(chan struct{})
	p.set(func() { p.isCutting, p.firstLost = true, lost })
	select {
	case <-stop:
	case <-lost:
	case <-time.After(20 * time.Millisecond):
	}
	p.set(func() { p.isCutting, p.firstLost = false, nil })
}

// ReplaceReply makes the proxy send this text in place of the next reply, once.
func (p *Proxy) ReplaceReply(text string) { p.set(func() { p.replacement = text }) }

// MangleReplies makes the proxy send what mangle returns in place of replies, until
// MangleReplies(nil). mangle gets one or several replies, or a part of one. Connections may call it
// at the same time. Unlike a TCP connection, this can lose one reply and keep those after it.
func (p *Proxy) MangleReplies(mangle func(replies []byte) []byte) {
	p.set(func() { p.mangle = mangle })
}

// Only makes DropReplies, CutOnReply, ReplaceReply and MangleReplies affect only connections whose
// client has sent this text, in upper or lower case. So handshakes still work. With an empty text,
// all connections are affected. Replies that are in flight when the client sends the text may be
// lost too.
func (p *Proxy) Only(text string) {
	p.set(func() { p.onlyMatching = bytes.ToLower([]byte(text)) })
}

// Block blocks all traffic between the server and clients with these IP addresses, in both
// directions. Nothing arrives, and no connection ends, as in a network that loses every packet. The
// next call replaces the list. The proxy then delivers the blocked data of addresses that are no
// longer in the list.
func (p *Proxy) Block(clients ...string) {
	p.set(func() {
		if p.isClosed {
			return
		}
		p.blockedIPs = slices.Clone(clients)
		close(p.blockedChanged)
		p.blockedChanged = make(chan struct{})
	})
}

// Delay delays the first reply of each new connection, so that only opening a connection is slow.
func (p *Proxy) Delay(by time.Duration) { p.set(func() { p.firstReplyDelay = by }) }

// Losses returns how many connections have lost a reply.
func (p *Proxy) Losses() int64 { return p.lost.Load() }

// Close ends the listener and all connections; a second call does nothing.
func (p *Proxy) Close() {
	p.set(func() {
		if !p.isClosed {
			close(p.blockedChanged)
		}
		p.isClosed = true
		_ = p.listener.Close()
		for c := range p.conns {
			_ = c.Close()
		}
	})
	p.goroutines.Wait()
}

// redirect puts the proxy in front of another server. Open connections stay with the old server.
func (p *Proxy) redirect(network, upstream string) {
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
		p.goroutines.Go(func() { p.serve(client) })
	}
}

// serve forwards until either side has closed its connection.
func (p *Proxy) serve(client net.Conn) {
	defer p.drop(client)
	p.awaitUnblocked(client)
	p.mu.Lock()
	network, upstream, delay := p.network, p.upstream, p.firstReplyDelay
	p.mu.Unlock()
	server, err := net.DialTimeout(network, upstream, answerTimeout)
	if err != nil {
		return
	}
	defer p.drop(server)
	if !p.register(client, server) {
		return
	}
	l := &link{proxy: p, client: client, server: server, firstReplyDelay: delay}
	p.goroutines.Go(l.forwardRequests)
	l.forwardReplies()
}

// register registers connections for Close. It returns false if Close has been called.
func (p *Proxy) register(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		p.conns[c] = struct{}{}
	}
	return !p.isClosed
}

// awaitUnblocked waits while the traffic of the client is blocked.
func (p *Proxy) awaitUnblocked(client net.Conn) {
	host, _, _ := net.SplitHostPort(client.RemoteAddr().String())
	for {
		p.mu.Lock()
		isBlocked, changed := !p.isClosed && slices.Contains(p.blockedIPs, host), p.blockedChanged
		p.mu.Unlock()
		if !isBlocked {
			return
		}
		<-changed
	}
}

func (p *Proxy) drop(c net.Conn) {
	_ = c.Close()
	p.set(func() { delete(p.conns, c) })
}

// A link is a client's connection, and the connection to the server that belongs to it.
type link struct {
	proxy           *Proxy
	client, server  net.Conn
	firstReplyDelay time.Duration

	// hasMatched is true if a request has matched Only. A reply clears hasMatched while DropReplies
	// and CutOnReply are both off. hasMatched is guarded by proxy.mu.
	hasMatched bool

	hasLostReply bool                // a reply was discarded; used only by forwardReplies
	replacement  []byte              // of a replaced reply; used only by forwardReplies
	mangle       func([]byte) []byte // of mangled replies; used only by forwardReplies
}

func (l *link) forwardRequests() {
	defer l.server.Close() // ends forwardReplies too
	var recent []byte      // a match may be split between two reads
	buf := make([]byte, 64<<10)
	for {
		n, err := l.client.Read(buf)
		if err != nil {
			return
		}
		l.proxy.awaitUnblocked(l.client)
		recent = l.recordMatch(append(recent, buf[:n]...))
		if _, err := l.server.Write(buf[:n]); err != nil {
			return
		}
	}
}

// recordMatch looks for a match of Only. It returns the last bytes of sent, which may be the
// beginning of another match.
func (l *link) recordMatch(sent []byte) []byte {
	p := l.proxy
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.onlyMatching) == 0 {
		return nil
	}
	if bytes.Contains(bytes.ToLower(sent), p.onlyMatching) {
		l.hasMatched = true
	}
	return bytes.Clone(sent[max(0, len(sent)-len(p.onlyMatching)+1):])
}

func (l *link) forwardReplies() {
	buf := make([]byte, 64<<10)
	for isFirst := true; ; isFirst = false {
		n, err := l.server.Read(buf)
		if err != nil {
			return
		}
		if isFirst {
			time.Sleep(l.firstReplyDelay)
		}
		l.proxy.awaitUnblocked(l.client)
		reply := buf[:n]
		switch l.decideFate() {
		case discarded:
			continue
		case disconnected:
			return
		case replaced:
			reply = l.replacement
		case mangled:
			reply = l.mangle(reply)
		}
		if _, err := l.client.Write(reply); err != nil {
			return
		}
	}
}

// A fate is the proxy's treatment of a reply.
type fate int

const (
	passed       fate = iota // the client gets the reply
	discarded                // the client does not get the reply
	disconnected             // the client's connection is closed
	replaced                 // the client gets another reply
	mangled                  // the client gets what the function of MangleReplies returns
)

// decideFate decides the fate of a reply that has just arrived.
func (l *link) decideFate() fate {
	p := l.proxy
	p.mu.Lock()
	defer p.mu.Unlock()
	isAffected := len(p.onlyMatching) == 0 || l.hasMatched
	switch {
	case p.isCutting && l.hasLostReply:
		return disconnected
	case l.hasLostReply:
		return discarded
	case p.isCutting && isAffected:
		p.recordLossLocked()
		return disconnected
	case p.isDropping && isAffected:
		p.recordLossLocked()
		l.hasLostReply = true
		return discarded
	case p.replacement != "" && isAffected:
		p.recordLossLocked()
		l.replacement, p.replacement = []byte(p.replacement), ""
		return replaced
	case p.mangle != nil && isAffected:
		l.mangle = p.mangle
		return mangled
	}
	if !p.isDropping && !p.isCutting {
		l.hasMatched = false
	}
	return passed
}

func (p *Proxy) recordLossLocked() {
	p.lost.Add(1)
	if p.firstLost != nil {
		close(p.firstLost)
		p.isCutting, p.firstLost = false, nil
	}
}
