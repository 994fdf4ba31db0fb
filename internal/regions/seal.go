package regions

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
)

// A sealer encrypts the keys of counters, so that Redis shows no identity if the stores have a
// secret. Equal keys have equal sealed forms, so that a set in Redis has each only once. With a nil
// AEAD, texts stay as they are.
type sealer struct {
	aead  cipher.AEAD
	nonce []byte // the key of the HMAC that a nonce is made of
	mark  string // a hash of the secret, to compare secrets; "" without a secret
}

func newSealer(secret []byte) *sealer {
	if len(secret) == 0 {
		return &sealer{}
	}
	derive := func(purpose string) []byte {
		mac := hmac.New(sha256.New, secret)
		mac.Write([]byte(purpose))
		return mac.Sum(nil)
	}
	block, err := aes.NewCipher(derive("penstock regions key"))
	if err != nil {
		panic(err) // the key has 32 bytes
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		panic(err) // AES has blocks of 16 bytes
	}
	const markBytes = 8
	return &sealer{aead, derive("penstock regions nonce"), hex.EncodeToString(derive("penstock regions mark")[:markBytes])}
}

// seal encrypts a text. Its nonce is an HMAC of the text, so that no two texts have the same one.
func (s *sealer) seal(text string) string {
	if s.aead == nil {
		return text
	}
	mac := hmac.New(sha256.New, s.nonce)
	mac.Write([]byte(text))
	nonce := mac.Sum(nil)[:s.aead.NonceSize()]
	return string(s.aead.Seal(nonce, nonce, []byte(text), nil))
}

// open returns the text that was sealed. ok is false if it was sealed with another secret.
func (s *sealer) open(sealed string) (text string, ok bool) {
	if s.aead == nil {
		return sealed, true
	}
	n := s.aead.NonceSize()
	if len(sealed) < n {
		return "", false
	}
	plain, err := s.aead.Open(nil, []byte(sealed[:n]), []byte(sealed[n:]), nil)
	return string(plain), err == nil
}
