package settings

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"

	"github.com/penstock/penstock/cmd/penstock/internal/text/redact"
	"github.com/penstock/penstock/internal/rediskeys"
)

// SharedSecret derives a secret from all secrets that instances share. Without any, it is random.
func (s *Settings) SharedSecret() []byte {
	if len(s.OperatorToken)+len(s.KeyHashSecret)+len(s.CallerToken) == 0 {
		return []byte(rand.Text())
	}
	h := sha256.New()
	for _, secret := range [][]byte{[]byte("penstock ids"), s.OperatorToken, s.KeyHashSecret, s.CallerToken} {
		h.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(secret))))
		h.Write(secret)
	}
	return h.Sum(nil)
}

// Identities returns how identities are shown. Instances with the same shared secret show the same
// masks. The name of a key is how the store writes it.
func (s *Settings) Identities(shared []byte) *redact.Identities {
	masks := sha256.Sum256(append([]byte("penstock masks"), shared...))
	return &redact.Identities{
		Show:   s.ShownIdentities,
		Secret: masks[:],
		Key:    rediskeys.KeyOf,
		Name:   func(key string) string { return string(rediskeys.NewNames(s.KeyHashSecret).Append(nil, key)) },
	}
}
