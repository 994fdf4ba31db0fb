package resplimit

import (
	"crypto/sha256"
	"crypto/subtle"
)

// A Credential authenticates clients that send it by AUTH or HELLO.
type Credential struct {
	// User is the name that AUTH must state. An AUTH without a name is for the user "default". If
	// User is empty, the Password is a token: AUTH may state any name with the token, or none.
	User string

	// Password must not be empty.
	Password string
}

// Why a client is rejected.
const (
	wrongPassword = "wrong_password"
	noPassword    = "no_password"
)

func (c *client) reportAuthFailure(reason string) {
	if report := c.server.options.AuthFailed; report != nil {
		report(reason, c.conn.RemoteAddr())
	}
}

// defaultUser is the user of an AUTH without a name.
const defaultUser = "default"

// credentials are the hashes of credentials. A comparison of hashes takes a time that reveals
// nothing about a password, not even its length.
type credentials []credential

type credential struct {
	isToken        bool
	user, password [sha256.Size]byte
}

func hashCredentials(list []Credential) (all credentials) {
	for _, c := range list {
		all = append(all, credential{c.User == "", sha256.Sum256([]byte(c.User)), sha256.Sum256([]byte(c.Password))})
	}
	return all
}

// hasMatch reports whether a credential has this user and password. All credentials are compared,
// so the time does not depend on which of them matches.
func (all credentials) hasMatch(user, password []byte) bool {
	userHash, passwordHash := sha256.Sum256(user), sha256.Sum256(password)
	found := 0
	for i := range all {
		c := &all[i]
		userMatch := subtle.ConstantTimeCompare(c.user[:], userHash[:]) // 1 or 0
		if c.isToken {
			userMatch = 1
		}
		found |= userMatch & subtle.ConstantTimeCompare(c.password[:], passwordHash[:])
	}
	return found == 1
}
