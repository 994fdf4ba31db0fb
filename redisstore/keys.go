package redisstore

import (
	"fmt"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/rediskeys"
)

// KeyOf returns the name of the Redis key in which a store with these Options has the state of a
// charge's limit. An error wraps penstock.ErrInvalid.
func KeyOf(c penstock.Charge, o Options) (string, error) {
	if err := o.Validate(); err != nil {
		return "", err
	}
	if c.Plan == nil {
		return "", fmt.Errorf("%w: the charge has no Plan", penstock.ErrInvalid)
	}
	keys := o.keys()
	return string(keys.Append(nil, c.Key, c.Plan)), nil
}

// keys returns how a store with these Options names keys.
func (o Options) keys() rediskeys.Scheme {
	return rediskeys.Scheme{Base: rediskeys.Base(o.Prefix), Secret: o.Secret}
}
