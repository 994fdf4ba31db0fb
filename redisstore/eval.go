package redisstore

import (
	"context"
	"maps"
	"slices"

	"github.com/penstock/penstock/internal/rediskeys"
)

// Eval runs a Lua script of the caller's on the Store's server, or on one server of a Cluster. The
// script gets keys of the Store's own, which no limit can have: for each of the names, the key
// PREFIX1{%@}NAME. All of them are in one slot. Errors are like those of Ping.
func (s *Store) Eval(ctx context.Context, script string, names []string, args ...string) (string, error) {
	keys := make([]string, len(names))
	for i, name := range names {
		keys[i] = rediskeys.StoreKey(s.keys.Base, name)
	}
	return s.evalText(ctx, script, keys, args)
}

// EvalOnEach runs a Lua script of the caller's on the Store's server, or on each primary of a
// Cluster, in the order of their addresses. The function read gets the address and the reply of
// each server; without a Cluster the address is "". The script gets one key, which the server owns,
// which no limit can have, and which ends in name. EvalOnEach ends at the first error. On a Cluster
// it needs the right to CLUSTER SLOTS.
func (s *Store) EvalOnEach(ctx context.Context, script, name string, args []string, read func(server, reply string) error) error {
	keys, err := s.keyOfEachServer(ctx, name)
	if err != nil {
		return s.unavailable(ctx, err)
	}
	for _, address := range slices.Sorted(maps.Keys(keys)) {
		reply, err := s.evalText(ctx, script, []string{keys[address]}, args)
		if err != nil {
			return err
		}
		if err := read(address, reply); err != nil {
			return s.unavailable(ctx, err)
		}
	}
	return nil
}

// evalText runs a script by its text. An error is a penstock.StoreError.
func (s *Store) evalText(ctx context.Context, script string, keys, args []string) (string, error) {
	reply, err := s.client.Eval(ctx, script, keys, args)
	if err != nil {
		return "", s.unavailable(ctx, nameMissingRight(script, err))
	}
	return reply, nil
}
