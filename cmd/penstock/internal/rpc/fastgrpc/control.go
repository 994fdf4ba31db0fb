package fastgrpc

import (
	"errors"
	"math"
	"time"

	"golang.org/x/net/http2"
)

// handleSettings applies the client's settings, and acknowledges them.
func (c *conn) handleSettings(f *http2.SettingsFrame) error {
	if f.HasDuplicates() || f.NumSettings() > maxSettings {
		return connectionError{http2.ErrCodeEnhanceYourCalm, "there are too many settings, or one of them occurs twice"}
	}
	c.mu.Lock()
	err := f.ForeachSetting(c.setLocked)
	c.outgoing = appendFrame(c.outgoing, 0, http2.FrameSettings, http2.FlagSettingsAck, 0)
	c.mu.Unlock()
	if ce, ok := errors.AsType[http2.ConnectionError](err); ok {
		return connectionError{http2.ErrCode(ce), "a setting is out of range"}
	}
	if err != nil {
		return err
	}
	return c.spendAllowance(costOfSettings)
}

// maxSettings is how many settings a frame may have. HTTP/2 and its extensions define fewer.
const maxSettings = 32

// setLocked applies one setting of the client.
func (c *conn) setLocked(setting http2.Setting) error {
	if err := setting.Valid(); err != nil {
		return err
	}
	switch setting.ID {
	case http2.SettingInitialWindowSize:
		change := int64(setting.Val) - c.initialSendWindow
		c.initialSendWindow = int64(setting.Val)
		for _, s := range c.streams {
			if s.sendWindow += change; s.sendWindow > math.MaxInt32 {
				return connectionError{http2.ErrCodeFlowControl, "SETTINGS_INITIAL_WINDOW_SIZE makes the window of a stream too large"}
			}
		}
		c.unblockLocked()
	case http2.SettingHeaderTableSize:
		c.mustShrink = c.mustShrink || setting.Val < hpackTable
	case http2.SettingMaxHeaderListSize:
		c.maxHeaderList = setting.Val
	}
	return nil
}

func (c *conn) handleWindowUpdate(f *http2.WindowUpdateFrame) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f.StreamID == 0 {
		if c.sendWindow += int64(f.Increment); c.sendWindow > math.MaxInt32 {
			return connectionError{http2.ErrCodeFlowControl, "the window of the connection is too large"}
		}
		c.unblockLocked()
		return c.spendAllowance(1)
	}
	s := c.streams[f.StreamID]
	if s == nil {
		if c.isUnopenedLocked(f.StreamID) {
			return connectionError{http2.ErrCodeProtocol, "WINDOW_UPDATE has the number of a stream that was not opened"}
		}
		return c.spendAllowance(1)
	}
	if s.sendWindow += int64(f.Increment); s.sendWindow > math.MaxInt32 {
		c.abortLocked(s, http2.ErrCodeFlowControl)
	}
	c.unblockLocked()
	return c.spendAllowance(1)
}

func (c *conn) handlePing(f *http2.PingFrame) error {
	c.mu.Lock()
	switch {
	case !f.IsAck():
		c.outgoing = appendPing(c.outgoing, http2.FlagPingAck, f.Data)
	case c.drainState == announced && f.Data == goAwayPing:
		c.finalizeLocked(time.Now())
	}
	c.mu.Unlock()
	return c.spendAllowance(1)
}

// handleReset cancels a stream. The stream's handler continues, and its response is dropped.
func (c *conn) handleReset(f *http2.RSTStreamFrame) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.streams[f.StreamID]; s != nil {
		c.removeLocked(s)
	} else if c.isUnopenedLocked(f.StreamID) {
		return connectionError{http2.ErrCodeProtocol, "RST_STREAM has the number of a stream that was not opened"}
	}
	return c.spendAllowance(1)
}

// handleStreamError cancels the stream of a malformed frame.
func (c *conn) handleStreamError(e http2.StreamError) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.streams[e.StreamID]; s != nil {
		c.abortLocked(s, e.Code)
	} else {
		c.outgoing = appendReset(c.outgoing, e.StreamID, e.Code)
	}
	return c.spendAllowance(costOfMistake)
}

// An allowance bounds how many frames a client may send that carry no part of a request. An
// allowance grows with time and with each request.
type allowance struct {
	left   int
	grewAt time.Time // when it last grew with time
}

// The unit of an allowance is one frame that carries no part of a request. SETTINGS and mistakes
// cost more, because they make more work.
const (
	maxAllowance       = 10_000
	allowancePerSecond = 100
	allowanceOfRequest = 10 // what each request adds
	costOfSettings     = 10
	costOfMistake      = 10
	smallData          = 256 // bytes: a smaller DATA frame costs 1 unless it ends a request
)

// spendAllowance takes the cost of a frame from the allowance. It returns an error if too little is
// left.
func (c *conn) spendAllowance(cost int) error {
	a := &c.allowance
	if a.left -= cost; a.left >= 0 {
		return nil
	}
	now := time.Now()
	elapsed := min(now.Sub(a.grewAt), time.Hour) // an hour is more than enough for maxAllowance
	gained := elapsed * allowancePerSecond / time.Second
	a.grewAt = now
	if gained == 0 {
		return connectionError{http2.ErrCodeEnhanceYourCalm, "there are too many frames that carry no part of a request"}
	}
	a.left = min(int(gained), maxAllowance)
	return nil
}

// growAllowance adds n to the allowance, up to maxAllowance.
func (c *conn) growAllowance(n int) { c.allowance.left = min(c.allowance.left+n, maxAllowance) }
