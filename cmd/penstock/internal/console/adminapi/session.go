package adminapi

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// A session lets a browser read and write without sending the token each time. Its cookie has the
// time at which the session ends, and an HMAC of that time with the token as the key. The cookie
// does not reveal the token. Every instance with the same token accepts it. A new token ends all
// sessions.
const (
	sessionCookie = "penstock_session"
	sessionLife   = 12 * time.Hour
)

// LogIn returns the cookie of a new session for an operator who has sent the token.
//
// The cookie has no path. So a browser sends the cookie to the folder of the page that set it,
// under any prefix.
func (h *Handler) LogIn(token string, req *http.Request) (*http.Cookie, error) {
	if _, err := h.ViewerOfToken(token); err != nil {
		return nil, err
	}
	end := strconv.FormatInt(time.Now().Add(sessionLife).Unix(), 10)
	c := cookie(end+"."+h.signSession(end), req)
	c.MaxAge = int(sessionLife / time.Second)
	return c, nil
}

// LogOut returns the cookie that ends a session in a browser.
func LogOut(req *http.Request) *http.Cookie {
	c := cookie("", req)
	c.MaxAge = -1
	return c
}

func cookie(value string, req *http.Request) *http.Cookie {
	isSecure := req.TLS != nil || strings.HasPrefix(req.Header.Get("Origin"), "https://") // the browser uses TLS to a proxy
	return &http.Cookie{Name: sessionCookie, Value: value, HttpOnly: true, Secure: isSecure, SameSite: http.SameSiteStrictMode}
}

// hasSession reports whether a request has the cookie of a session that has not ended.
func (h *Handler) hasSession(req *http.Request) bool {
	c, err := req.Cookie(sessionCookie)
	if err != nil || len(h.Token) == 0 {
		return false
	}
	end, signature, _ := strings.Cut(c.Value, ".")
	if subtle.ConstantTimeCompare([]byte(signature), []byte(h.signSession(end))) != 1 {
		return false
	}
	seconds, err := strconv.ParseInt(end, 10, 64)
	return err == nil && time.Now().Before(time.Unix(seconds, 0))
}

func (h *Handler) signSession(end string) string {
	mac := hmac.New(sha256.New, h.Token)
	mac.Write([]byte("penstock session\x00" + end))
	return hex.EncodeToString(mac.Sum(nil))
}
