package redisclient

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
)

// An exchange checks the replies on a connection against the commands that were sent, because
// rueidis trusts replies. A wrong length, a reply to no command or a reply with too few elements
// makes it panic on a goroutine of its own. A large length makes it allocate as much memory. So it
// must never read the last byte of such a reply.
//
// Most replies are only counted. Special are scripts with a stamp, the few commands whose replies
// rueidis reads without looking at their length, and those of publish and subscribe.
type exchange struct {
	commands commandScanner // only send uses it
	replies  replyScanner   // only receive uses it, and the following fields
	answered int64          // commands whose replies have come
	skip     int            // further confirmations of a subscription that has begun
	err      error          // the first malformed reply

	sent     atomic.Int64 // commands; a command is counted before its last byte is sent
	isRESP3  atomic.Bool
	isPubSub atomic.Bool  // a channel was subscribed to, or unsubscribed from
	pending  atomic.Int64 // the length of specials

	mu       sync.Mutex
	specials []special // in the order of their numbers
}

// A special command is one whose reply is checked in detail.
type special struct {
	number      int64 // the command's number on the connection, from 0 on
	kind        specialKind
	minElements int64                 // of a needsElements command
	channels    int                   // of a subscribe command
	stamp       [stampNumberSize]byte // of a stamped command
}

type specialKind int

const (
	stamped       specialKind = iota // a string that begins with the stamp, or an error
	needsElements                    // an aggregate has minElements or more
	subscribe                        // pushes, or an error
	unsubscribe                      // a PING follows it; the answer is pushes and the pong, or an error and the pong
	pong                             // the PING after an unsubscribe command that was answered by an error
)

var (
	errSurplus   = errors.New("malformed reply: there are more replies than commands")
	errUnrelated = errors.New("malformed reply: it is no reply to the command that was sent")
)

// send looks at commands that are about to be sent.
func (x *exchange) send(b []byte) {
	sent := x.sent.Load()
	for len(b) > 0 {
		var isComplete bool
		if b, isComplete = x.commands.scan(b); isComplete {
			x.note(sent)
			sent++
		}
	}
	x.sent.Store(sent)
}

// note records a command that is special, and its version of the protocol.
func (x *exchange) note(number int64) {
	name, argument := x.commands.words()
	s := special{number: number, kind: needsElements}
	switch string(name) {
	default:
		if !x.commands.isStamped {
			return
		}
		s.kind, s.stamp = stamped, x.commands.stamp
	case "HELLO":
		x.isRESP3.Store(string(argument) == "3")
		return
	case "ROLE":
		s.minElements = 1
	case "SENTINEL":
		if string(argument) != "GET-MASTER-ADDR-BY-NAME" {
			return
		}
		s.minElements = 2
	case "SUBSCRIBE", "PSUBSCRIBE", "SSUBSCRIBE":
		s.kind, s.channels = subscribe, x.commands.arguments-1
		x.isPubSub.Store(true)
	case "UNSUBSCRIBE", "PUNSUBSCRIBE", "SUNSUBSCRIBE":
		s.kind = unsubscribe
		x.isPubSub.Store(true)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.specials = append(x.specials, s)
	x.pending.Add(1)
}

// receive returns how many of the bytes that were read rueidis may see. If these are not all, the
// next byte would complete a malformed reply, and all later calls return 0 and an error.
func (x *exchange) receive(b []byte) (n int, err error) {
	for n < len(b) && x.err == nil {
		if x.replies.isAtStart() {
			x.replies.isKept = x.isPubSub.Load()
		}
		var accepted int
		if accepted, x.err = x.replies.scan(b[n:]); x.err == nil && x.replies.isComplete() {
			if x.err = x.accept(&x.replies); x.err != nil {
				accepted--
			}
		}
		n += accepted
	}
	if n == 0 {
		return 0, x.err
	}
	return n, nil
}

func (x *exchange) accept(r *replyScanner) error {
	if r.isError() && !canBeRead(r.fields[0]) {
		return errors.New("malformed reply: a redirection that names no server")
	}
	if r.isPush() {
		return x.acceptPush(r)
	}
	if r.elements > 0 && !r.isPong() && x.isPubSub.Load() && !x.isRESP3.Load() {
		return x.acceptPush(r) // in RESP 2, a push is an array
	}
	if x.answered >= x.sent.Load() {
		return errSurplus
	}
	if x.pending.Load() > 0 {
		if isSpecial, err := x.acceptSpecial(r); isSpecial {
			return err
		}
	}
	x.answered++
	return nil
}

// acceptSpecial checks the reply to a special command, and returns false if the command is not
// special.
func (x *exchange) acceptSpecial(r *replyScanner) (isSpecial bool, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	s := x.firstLocked()
	if s == nil {
		return false, nil
	}
	isQueued := string(r.fields[0]) == "QUEUED"
	hasStamp := r.top == '$' && r.headLength == len(r.head) && r.head == s.stamp
	switch {
	case s.kind == stamped && !r.isError() && !hasStamp:
		return true, errUnrelated
	case s.kind == needsElements && r.elements >= 0 && r.elements < s.minElements:
		return true, fmt.Errorf("malformed reply: it has %d elements; %d are needed", r.elements, s.minElements)
	case s.kind == subscribe && (!r.isError() || isQueued),
		s.kind == unsubscribe && (!r.isPong() && !r.isError() || isQueued),
		s.kind == pong && !r.isPong():
		return true, errUnrelated
	case s.kind == unsubscribe && r.isPong() && x.answered+1 >= x.sent.Load():
		return true, errSurplus
	case s.kind == unsubscribe && r.isPong():
		x.answered++ // the pong answers both commands
	case s.kind == unsubscribe:
		x.answered++
		*s = special{number: x.answered, kind: pong}
		return true, nil
	}
	x.removeFirstLocked()
	return true, nil
}

// acceptPush checks a push. rueidis must see a confirmation of a subscription only if it has sent
// the command, and in the order of the commands.
func (x *exchange) acceptPush(r *replyScanner) error {
	if r.elements < 2 {
		return nil // rueidis ignores it
	}
	switch string(r.fields[0]) {
	case "subscribe", "psubscribe", "ssubscribe":
		if x.skip > 0 {
			x.skip--
			return nil
		}
		x.mu.Lock()
		defer x.mu.Unlock()
		s := x.firstLocked()
		if s == nil || s.kind != subscribe || x.answered >= x.sent.Load() {
			return errUnrelated
		}
		x.skip = max(s.channels-1, 0)
		x.removeFirstLocked()
	case "unsubscribe", "punsubscribe", "sunsubscribe":
		x.skip = max(x.skip-1, 0)
	case "message":
		if r.elements >= 3 && !isEvent(r.fields[1], r.fields[2]) {
			return fmt.Errorf("malformed reply: an event of Sentinel has too few words: %.100q", r.fields[2])
		}
	}
	return nil
}

// firstLocked returns the special command that is to be answered next, or nil if the command that
// is to be answered next is not special.
func (x *exchange) firstLocked() *special {
	if len(x.specials) == 0 || x.specials[0].number != x.answered {
		return nil
	}
	return &x.specials[0]
}

func (x *exchange) removeFirstLocked() {
	x.specials = append(x.specials[:0], x.specials[1:]...)
	x.pending.Add(-1)
	x.answered++
}

// canBeRead returns false for the text of a redirection from which rueidis would take a word that
// is missing.
func canBeRead(text []byte) bool {
	spaces := bytes.Count(text, []byte(" "))
	isMove := bytes.HasPrefix(text, []byte("MOVED")) || bytes.HasPrefix(text, []byte("ASK"))
	return (!isMove || spaces >= 2) && (!bytes.HasPrefix(text, []byte("REDIRECT")) || spaces >= 1)
}

// isEvent returns false for a message of Sentinel from which rueidis would take a word that is
// missing.
func isEvent(channel, text []byte) bool {
	spaces := bytes.Count(text, []byte(" "))
	switch string(channel) {
	case "+switch-master":
		return spaces >= 4
	case "+sentinel", "+reboot", "+slave", "+sdown", "-sdown":
		return spaces >= 3 && (spaces >= 5 || !bytes.HasPrefix(text, []byte("slave ")))
	}
	return true
}
