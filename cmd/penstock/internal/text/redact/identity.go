package redact

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"net/netip"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/penstock/penstock/internal/syntax"
)

// How identities are shown.
const (
	ShowOff    = "off"    // identities are not shown
	ShowMasked = "masked" // identities cannot be read, but equal ones can be recognized
	ShowFull   = "full"   // operators see identities in full, others see them masked
)

// Identities shows keys in the form that a setting chooses. All fields must be set.
type Identities struct {
	Show   string // ShowOff, ShowMasked or ShowFull
	Secret []byte // the key of the hashes in masks and refs

	// Name returns the name that a key has in the store. Key is its inverse; ok is false if the name
	// is a hash.
	Name func(key string) string
	Key  func(name string) (key string, ok bool)
}

// Shown returns how identities are shown to an operator, or to another client.
func (i *Identities) Shown(isOperator bool) string {
	if i.Show == ShowFull && !isOperator {
		return ShowMasked
	}
	return i.Show
}

// Of returns the form in which an operator, or another client, may see a key. name is the name of
// the key in the store. The key of all clients together names nobody, so it is not masked.
func (i *Identities) Of(isOperator bool, name string) string {
	switch {
	case i.Show == ShowOff:
		return ""
	case name == i.Name(syntax.GlobalKey): // also if the store has its hash
		return syntax.GlobalKey
	}
	key, isReadable := i.Key(name)
	switch {
	case !isReadable && isOperator: // the store has a hash only
		return name
	case !isReadable: // without a secret, others could compute the store's hash of a guessed key
		return "%#" + i.hash("mask", name)[:maskDigits]
	case i.Shown(isOperator) == ShowFull:
		return key
	}
	return Mask(key) + "#" + i.hash("mask", key)[:maskDigits]
}

// Ref returns a short text that stands for the name of a key. Equal names have equal refs.
func (i *Identities) Ref(name string) string { return i.hash("ref", name)[:refDigits] }

// Attributes returns the attributes of a log line about a key: the masked key and its ref. It
// returns none if identities are not shown.
func (i *Identities) Attributes(key string) []any {
	if i.Show == ShowOff {
		return nil
	}
	const isOperator = false // the log shows keys masked
	name := i.Name(key)
	return []any{"key", i.Of(isOperator, name), "ref", i.Ref(name)}
}

// hash returns the HMAC of a text. Each purpose gives a text another hash.
func (i *Identities) hash(purpose, text string) string {
	mac := hmac.New(sha256.New, i.Secret)
	mac.Write([]byte(purpose + "\x00" + text))
	return hex.EncodeToString(mac.Sum(nil))
}

// Mask hides the values of an identity and keeps the kinds: "org:7,ip:192.0.2.1" becomes
// "org:…,ip:192.0.2.0/24". The key of all clients together stays.
func Mask(key string) string {
	if key == syntax.GlobalKey {
		return key
	}
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

// IsMasked reports whether a text has the form of a key that Mask or Of has masked. A network such
// as ip:192.0.2.0/24 counts as masked only if it ends in the hash that Of adds.
func IsMasked(key string) bool {
	rest := key
	if at := strings.LastIndexByte(key, '#'); at >= 0 && len(key)-at == 1+maskDigits {
		if digits, err := hex.DecodeString(key[at+1:]); err == nil && hex.EncodeToString(digits) == key[at+1:] {
			rest = key[:at]
		}
	}
	return slices.ContainsFunc(strings.Split(rest, ","), func(part string) bool {
		kind, value, hasKind := strings.Cut(part, ":")
		if !hasKind || len(kind) > maxKind {
			value = part
		}
		letters := []rune(value)
		isShortened := len(letters) == 2*shownLetters+1 && letters[shownLetters] == '…'
		_, err := netip.ParsePrefix(value)
		hasHash := len(rest) < len(key)
		isMaskedNetwork := err == nil && hasHash
		return value == "…" || isShortened || isMaskedNetwork
	})
}

const (
	shownLetters = 2 // letters at the beginning of a value, and as many at its end
	minHidden    = 8 // letters between them; of a value with fewer, no letter is shown

	maskDigits = 8  // digits of the hash in the result of Of
	refDigits  = 16 // digits of a ref
)

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
	letters := []rune(value)
	if !utf8.ValidString(value) || len(letters) < 2*shownLetters+minHidden {
		return "…"
	}
	return string(letters[:shownLetters]) + "…" + string(letters[len(letters)-shownLetters:])
}

// network returns the network that is shown for an address, or for a network of this many bits.
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
