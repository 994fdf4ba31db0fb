package redisstore

import (
	"fmt"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/rediskeys"
)

const maxPrefixBytes = 64 // bytes of Options.Prefix

// appendKey appends the name of the Redis key that has the state of a plan's limit for key.
func (s *Store) appendKey(b []byte, key string, plan *penstock.Plan) []byte {
	b = s.appendKeyStart(b, key)
	b = append(b, plan.Group()...)
	if plan.Algorithm().IsCollection() {
		b = append(b, ':')
		b = append(b, plan.Name()...)
		b = append(b, ':')
		b = append(b, plan.Algorithm().Name()...)
	}
	return b
}

// appendKeyStart appends the beginning of all names for key: the prefix and the hash tag.
func (s *Store) appendKeyStart(b []byte, key string) []byte {
	b = append(b, s.prefix...)
	b = append(b, '{')
	if s.secret != nil {
		b = rediskeys.NewNames(s.secret).Append(b, key)
	} else {
		b = rediskeys.Append(b, key)
	}
	return append(b, '}')
}

// KeyOf returns the name of the Redis key in which a store with these Options has the state of a
// charge's limit. An error wraps penstock.ErrInvalid.
func KeyOf(c penstock.Charge, o Options) (string, error) {
	s, err := newStore(o)
	if err != nil {
		return "", err
	}
	if c.Plan == nil {
		return "", fmt.Errorf("%w: the charge has no Plan", penstock.ErrInvalid)
	}
	return string(s.appendKey(nil, c.Key, c.Plan)), nil
}
