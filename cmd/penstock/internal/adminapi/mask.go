package adminapi

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"net/netip"
	"strings"
	"unicode/utf8"
)

// ref stands for the name of a key. Equal names have equal refs.
func (h *Handler) ref(name string) string { return h.hash("ref", name)[:16] }

// hash returns the HMAC of a text. Its purpose keeps hashes of different uses apart.
func (h *Handler) hash(purpose, text string) string {
	mac := hmac.New(sha256.New, h.MaskSecret)
	mac.Write([]byte(purpose + "\x00" + text))
	return hex.EncodeToString(mac.Sum(nil))
}

// identity returns what a viewer may see of the key with a name in the store.
func (h *Handler) identity(v Viewer, name string) string {
	if h.Identities == ShowOff {
		return ""
	}
	key, isReadable := h.Key(name)
	switch {
	case !isReadable: // the store has a hash only
		return name
	case h.Identities == ShowFull && v.isOperator:
		return key
	}
	return mask(key) + "#" + h.hash("mask", key)[:8]
}

// mask hides the values of an identity such as "org:7,ip:192.0.2.1". The kinds stay.
func mask(key string) string {
	parts := strings.Split(key, ",")
	for i, part := range parts {
		kind, value, hasKind := strings.Cut(part, ":")
		if !hasKind || len(kind) > maxKind {
			parts[i] = maskValue(part)
			continue
		}
		parts[i] = kind + ":" + maskValue(value)
	}
	return strings.Join(parts, ",")
}

const maxKind = 20 // bytes of the kind of an identity, as in a policy

// maskValue keeps the network of an address: 24 bits of IPv4, 48 bits of IPv6. Of other values it
// keeps the first two and last two letters, if at least eight others stay hidden.
func maskValue(value string) string {
	if prefix, err := netip.ParsePrefix(value); err == nil {
		return network(prefix.Addr(), prefix.Bits())
	}
	if addr, err := netip.ParseAddr(value); err == nil {
		return network(addr, addr.BitLen())
	}
	const shown, hidden = 2, 8
	letters := []rune(value)
	if !utf8.ValidString(value) || len(letters) < 2*shown+hidden {
		return "…"
	}
	return string(letters[:shown]) + "…" + string(letters[len(letters)-shown:])
}

func network(addr netip.Addr, bits int) string {
	addr = addr.Unmap().WithZone("")
	most := 24
	if addr.Is6() {
		most = 48
	}
	prefix, err := addr.Prefix(min(bits, most))
	if err != nil {
		return "…"
	}
	return prefix.String()
}
