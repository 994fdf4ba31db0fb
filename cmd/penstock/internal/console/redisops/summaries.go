package redisops

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/redisstore"
)

const (
	MaxSummary   = 16 << 10 // bytes of a text
	MaxSummaries = 100      // texts that ReadSummaries returns
)

// summariesPerScript is how many texts one script reads: 320 KB at most, which takes the server
// less than a millisecond.
const summariesPerScript = 20

const writeSummaryLua = `#!lua
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return ''`

// readSummariesLua replies the number of registered instances and some of the summaries. For each
// summary, the reply has the lengths of the name and of the text, then the name and the text. The
// keys of the texts are KEYS[1] with summary.NAME in place of instances, and are in the same slot.
// A key that is not a string of at most MaxSummary bytes is left out, and so is a name of more than
// 1024 bytes. ARGV has the first and the last index in the set of instances.
const readSummariesLua = `#!lua
local begin = string.sub(KEYS[1], 1, -#'instances' - 1) .. 'summary.'
local names = redis.call('ZRANGE', KEYS[1], ARGV[1], ARGV[2])
local found = {redis.call('ZCARD', KEYS[1]) .. '\n'}
for _, name in ipairs(names) do
  local text = redis.pcall('GET', begin .. name)
  if type(text) == 'string' and #text <= 16384 and #name <= 1024 then
    found[#found + 1] = #name .. ' ' .. #text .. '\n' .. name .. text
  end
end
return table.concat(found)`

// A Summary is a text about an instance. The program that writes it chooses its format.
type Summary struct{ Instance, Text string }

// WriteSummary stores a text about an instance. The text expires after life. instance is the name
// that Heartbeat has registered. The text has at most MaxSummary bytes.
func WriteSummary(ctx context.Context, store *redisstore.Store, instance, text string, life time.Duration) error {
	if len(text) > MaxSummary || life < time.Millisecond {
		return fmt.Errorf("%w: the summary has %d bytes and a life of %v; it must have at most %d bytes and a life of 1ms or longer", penstock.ErrInvalid, len(text), life, MaxSummary)
	}
	_, err := store.Eval(ctx, writeSummaryLua, []string{"summary." + instance}, text, strconv.FormatInt(life.Milliseconds(), 10))
	return err
}

// ReadSummaries returns the texts of those MaxSummaries instances whose heartbeats expire last. It
// also returns how many instances are registered. Some instances may have stopped since their last
// heartbeat.
func ReadSummaries(ctx context.Context, store *redisstore.Store) (all []Summary, instances int, err error) {
	for from := 0; from < MaxSummaries; from += summariesPerScript {
		// Negative indexes count from the end of the set, where the heartbeats are that expire last.
		first, last := strconv.Itoa(-from-summariesPerScript), strconv.Itoa(-from-1)
		reply, err := store.Eval(ctx, readSummariesLua, []string{"instances"}, first, last)
		if err != nil {
			return nil, 0, err
		}
		part, n, err := parseSummaries(reply)
		if err != nil {
			return nil, 0, penstock.NewStoreError(penstock.ReasonUnknown, err)
		}
		all, instances = append(all, part...), n
		if from+summariesPerScript >= n {
			break
		}
	}
	return all, instances, nil
}

func parseSummaries(reply string) (all []Summary, instances int, err error) {
	head, rest, _ := strings.Cut(reply, "\n")
	if instances, err = strconv.Atoi(head); err != nil {
		return nil, 0, fmt.Errorf("the summaries script replied %.20q; expected the number of instances", reply)
	}
	for rest != "" {
		var nameSize, textSize int
		lengths, after, found := strings.Cut(rest, "\n")
		_, err := fmt.Sscanf(lengths, "%d %d", &nameSize, &textSize)
		hasSizes := err == nil && found && nameSize >= 0 && textSize >= 0
		if !hasSizes || len(after)-nameSize < textSize {
			return nil, 0, fmt.Errorf("the summaries script replied %.20q; expected the lengths of a name and a text, then both", rest)
		}
		all = append(all, Summary{Instance: after[:nameSize], Text: strings.Clone(after[nameSize : nameSize+textSize])})
		rest = after[nameSize+textSize:]
	}
	return all, instances, nil
}
