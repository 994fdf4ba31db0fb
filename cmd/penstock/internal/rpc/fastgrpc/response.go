package fastgrpc

import (
	"encoding/binary"
	"net/http"
	"slices"
	"time"

	"golang.org/x/net/http2"
)

// refuseLocked sends an error response. If the client has not sent the whole request, RST_STREAM
// tells it to stop.
func (c *conn) refuseLocked(id uint32, r *refusal, hasRequestEnded bool) {
	block := appendStatus(c.newBlockLocked(), r.httpStatus)
	block = appendField(block, "content-type", grpcContentType)
	block = appendStatusFields(block, r.status, c.maxHeaderList)
	c.outgoing = appendHeaders(c.outgoing, block, id, true)
	if !hasRequestEnded {
		c.outgoing = appendReset(c.outgoing, id, http2.ErrCodeNo)
	}
}

// newBlockLocked returns an empty header block, or one that begins with shrink if that is due.
func (c *conn) newBlockLocked() []byte {
	block := make([]byte, 0, 128) // enough for most responses
	if c.takeShrinkLocked() {
		block = append(block, shrink)
	}
	return block
}

// takeShrinkLocked reports whether the next header block must begin with shrink. It returns true
// once at most.
func (c *conn) takeShrinkLocked() bool {
	if !c.mustShrink || c.hasShrunk {
		return false
	}
	c.hasShrunk = true
	return true
}

// answerLocked sends the response of the call, or the responses of its list.
func (s *stream) answerLocked() {
	c, others := s.conn, s.others
	c.server.listedCalls.Add(-int64(len(others)))
	c.respondLocked(s, s.Err) // may release s, so others was read before
	for _, other := range others {
		c.respondLocked(other, other.Err)
	}
}

// respondLocked sends the response to one call: headers, the message and trailers, or the error.
func (c *conn) respondLocked(s *stream, err error) {
	s.isRunning = false
	if s.isRemoved || c.isClosed {
		c.releaseLocked(s)
		return
	}
	if err != nil {
		c.refuseLocked(s.id, &refusal{http.StatusOK, statusOf(err)}, true)
		delete(c.streams, s.id)
		c.releaseLocked(s)
		return
	}
	c.appendBlockLocked(s.id, headersOfSuccess, http2.FlagHeadersEndHeaders)
	n := int64(len(s.prefix) + len(s.Response))
	if len(c.blockedStreams) == 0 && n <= min(c.sendWindow, s.sendWindow, maxFrameBytes) {
		c.outgoing = appendFrame(c.outgoing, int(n), http2.FrameData, 0, s.id)
		c.outgoing = binary.BigEndian.AppendUint32(append(c.outgoing, 0), uint32(len(s.Response))) // 0: not compressed
		c.outgoing = append(c.outgoing, s.Response...)
		c.sendWindow -= n
		c.endResponseLocked(s)
		return
	}
	notCompressed := make([]byte, 1, n) // the flag 0, with room for the rest
	s.unsent = append(binary.BigEndian.AppendUint32(notCompressed, uint32(len(s.Response))), s.Response...)
	s.state, s.stateSince = answering, time.Now()
	c.blockedStreams = append(c.blockedStreams, s)
	if c.unblockLocked(); len(c.blockedStreams) == 1 {
		c.interruptLocked() // tick cancels the stream if it waits for too long
	}
}

// appendBlockLocked sends HEADERS with headersOfSuccess or trailersOfSuccess.
func (c *conn) appendBlockLocked(id uint32, block []byte, flags http2.Flags) {
	if c.takeShrinkLocked() {
		block = append([]byte{shrink}, block...)
	}
	c.outgoing = append(appendFrame(c.outgoing, len(block), http2.FrameHeaders, flags, id), block...)
}

// endResponseLocked sends the trailers of a response.
func (c *conn) endResponseLocked(s *stream) {
	c.appendBlockLocked(s.id, trailersOfSuccess, http2.FlagHeadersEndHeaders|http2.FlagHeadersEndStream)
	delete(c.streams, s.id)
	c.releaseLocked(s)
}

// unblockLocked sends as much of the waiting responses as the windows have room for.
func (c *conn) unblockLocked() {
	c.changed.Broadcast() // exchanges may wait for a window
	if len(c.blockedStreams) == 0 {
		return
	}
	c.blockedStreams = slices.DeleteFunc(c.blockedStreams, func(s *stream) bool {
		s.unsent = c.appendDataLocked(s, s.unsent)
		if len(s.unsent) > 0 {
			return false
		}
		c.endResponseLocked(s)
		return true
	})
}

// appendDataLocked sends as much of data as the windows have room for, and returns the rest.
func (c *conn) appendDataLocked(s *stream, data []byte) []byte {
	for len(data) > 0 {
		n := min(int64(len(data)), c.sendWindow, s.sendWindow, maxFrameBytes)
		if n <= 0 {
			break
		}
		c.outgoing = append(appendFrame(c.outgoing, int(n), http2.FrameData, 0, s.id), data[:n]...)
		c.sendWindow -= n
		s.sendWindow -= n
		data = data[n:]
	}
	return data
}
