package simulate

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/wording"
)

// The bounds of arrivals.
const (
	maxItems    = 100
	maxClients  = 1_000_000            // in one item
	maxDuration = 366 * 24 * time.Hour // the longest time of a simulation
)

// An Arrivals says when requests arrive.
type Arrivals struct {
	Text  string // what was parsed; each name is replaced by the arrivals that it stands for
	Items []Item
}

// An Item is one part of Arrivals. It is either a stream, whose requests arrive whatever the
// answers are, or a number of clients that each wait for an answer before their next request.
type Item struct {
	// Count is the number of clients, or of requests of a stream without a rate. It is 0 for a stream
	// with a rate.
	Count int64

	// rate is how fast the requests of a stream arrive, or how fast clients join. rate.Count is 0 if
	// the item has no rate.
	rate penstock.Limit

	gap       time.Duration // the time between two requests of a stream without a rate. 0: all at once
	isPoisson bool          // the requests of a stream with a rate have random gaps
	on, off   time.Duration // a stream pauses for off after each on. on is 0 if it never pauses
	IsClients bool          // the item is a number of clients; false: it is a stream
	thinkMin  time.Duration // the shortest time between an answer and the client's next request
	thinkMax  time.Duration // the longest one
	From, To  time.Duration // since the start. To is math.MaxInt64 if only Count ends a stream
	region    int           // where its requests arrive, from 1. 0: in each region in turn
}

// Parse reads arrivals: items with semicolons between them. A name stands for arrivals that suit
// the limit; see Names. Without a limit, names are not known.
func Parse(text string, limit *penstock.Plan, regionCount int) (*Arrivals, error) {
	parts := strings.Split(text, ";")
	if len(parts) > maxItems {
		return nil, fmt.Errorf("there are %d arrivals; write at most %d", len(parts), maxItems)
	}
	a := &Arrivals{}
	var texts []string
	for _, part := range parts {
		part = strings.TrimSpace(part)
		if n := named(part); n != nil {
			if limit == nil {
				return nil, fmt.Errorf("arrivals %q depend on a limit; add --limit, as in --limit '10/s, burst 100'", part)
			}
			part = n.arrivals(limit)
		}
		for one := range strings.SplitSeq(part, ";") {
			it, err := parseItem(strings.Fields(one))
			if err == nil && it.region > regionCount {
				err = fmt.Errorf("there is no region %d; the last one is %d", it.region, regionCount)
			}
			if err != nil {
				return nil, fmt.Errorf("arrivals %q: %w", wording.Clip(strings.TrimSpace(one)), err)
			}
			a.Items = append(a.Items, it)
		}
		texts = append(texts, part)
	}
	a.Text = strings.Join(texts, "; ")
	return a, nil
}

const arrivalsHint = "write them as in 150 at 0s, 20 every 50ms from 5s, 100/s for 10s, or 50 clients every 1s for 1m"

// parseItem reads one item: what arrives, and then pairs of a word and a time.
func parseItem(words []string) (Item, error) {
	it := Item{To: math.MaxInt64}
	if len(words) == 0 {
		return it, fmt.Errorf("nothing is written here; %s", arrivalsHint)
	}
	what, words := words[0], words[1:]
	if strings.Contains(what, "/") {
		rate, err := penstock.ParseRate(what)
		if err != nil {
			return it, err
		}
		it.rate = rate
	} else {
		n, err := strconv.ParseInt(strings.ReplaceAll(what, "_", ""), 10, 64)
		if err != nil || n < 1 {
			return it, fmt.Errorf("%q is neither a number of requests nor a rate; %s", wording.Clip(what), arrivalsHint)
		}
		it.Count = n
	}
	isSet := make(map[string]bool)
	for len(words) > 0 {
		word, value := words[0], ""
		words = words[1:]
		if isSet[word] {
			return it, fmt.Errorf("%q stands there twice; keep one", wording.Clip(word))
		}
		isSet[word] = true
		switch word {
		case "poisson":
			it.isPoisson = true
			continue
		case "client", "clients":
			it.IsClients = true
			continue
		}
		if len(words) > 0 {
			value, words = words[0], words[1:]
		}
		if err := it.set(word, value); err != nil {
			return it, err
		}
	}
	return it, it.check(isSet)
}

// set sets what a word stands for to the value behind it.
func (it *Item) set(word, value string) error {
	var sinceFrom time.Duration // it.From may stand behind it, so check adds both
	times := map[string]*time.Duration{"at": &it.From, "from": &it.From, "to": &it.To, "for": &sinceFrom, "on": &it.on, "off": &it.off, "every": &it.gap}
	at, isTime := times[word]
	least, most, isRange := strings.Cut(value, "..")
	var err error
	switch {
	case !isTime && word != "joining" && word != "in":
		return fmt.Errorf("the word %q is not known; %s", wording.Clip(word), arrivalsHint)
	case value == "":
		return fmt.Errorf("nothing follows %q; %s", word, arrivalsHint)
	case word == "joining":
		it.rate, err = penstock.ParseRate(value)
		return err
	case word == "in":
		if it.region, err = strconv.Atoi(value); err != nil || it.region < 1 {
			return fmt.Errorf("%q is not the number of a region; write it as in 100/s for 10s in 2", wording.Clip(value))
		}
		return nil
	case isRange && word != "every":
		return fmt.Errorf("%q is a range, which only every may have; write one time", wording.Clip(value))
	case !isRange:
		most = least
	}
	if *at, err = parseTime(least); err != nil {
		return err
	}
	switch word {
	case "for":
		it.To = -sinceFrom
	case "every":
		it.thinkMin = it.gap
		if it.thinkMax, err = parseTime(most); err != nil {
			return err
		}
		if it.thinkMax < it.thinkMin || isRange && !it.IsClients {
			return fmt.Errorf("%q is not a range of times between two requests of a client; write it as in 50 clients every 100ms..300ms for 1m", wording.Clip(value))
		}
	}
	return nil
}

// parseTime reads a time since the start, or a duration.
func parseTime(text string) (time.Duration, error) {
	t, err := time.ParseDuration(text)
	if err != nil || t < 0 || t > maxDuration {
		return 0, fmt.Errorf("%q is not a time of at most %s; write it as in 500ms, 5s or 1h30m", wording.Clip(text), wording.Period(maxDuration))
	}
	return t.Truncate(time.Microsecond), nil
}

// check checks the words of an item together, and completes its times.
func (it *Item) check(isSet map[string]bool) error {
	hasEnd := isSet["for"] || isSet["to"]
	if isSet["for"] && isSet["to"] || isSet["at"] && isSet["from"] {
		return errors.New("at and from mean the same time, and so do for and to; keep one of each")
	}
	if isSet["for"] {
		it.To = it.From - it.To
	}
	switch hasRate := it.rate.Count > 0; {
	case hasEnd && it.To <= it.From:
		return fmt.Errorf("it ends at %s, which is not after its start at %s; write a later time", wording.Period(it.To), wording.Period(it.From))
	case it.IsClients && (it.Count == 0 || !isSet["every"] || !hasEnd):
		return errors.New("clients need their number, the time between two requests, and an end; write it as in 50 clients every 1s for 1m")
	case it.IsClients && it.thinkMax == 0:
		return errors.New("a client needs a time between two requests; write every 1ms or more")
	case it.Count > MaxRequests:
		return fmt.Errorf("there are %d requests; write at most %d", it.Count, MaxRequests)
	case it.IsClients && it.Count > maxClients:
		return fmt.Errorf("there are %d clients; write at most %d", it.Count, maxClients)
	case !it.IsClients && isSet["joining"]:
		return errors.New("only clients join; write it as in 2000 clients joining 200/s every 1s for 1m")
	case isSet["on"] != isSet["off"] || isSet["on"] && (it.on == 0 || it.off == 0):
		return errors.New("on and off belong together, and are above 0; write it as in 100/s on 1s off 4s for 1m")
	case !it.IsClients && hasRate && !hasEnd:
		return errors.New("a rate needs an end; write it as in 100/s for 10s")
	case !it.IsClients && hasRate && isSet["every"]:
		return errors.New("a rate has its own gaps; remove every")
	case !hasRate && (it.isPoisson || isSet["on"]) || it.IsClients && (it.isPoisson || isSet["on"]):
		return errors.New("poisson, on and off belong to a rate; write it as in 100/s poisson for 10s")
	}
	return nil
}

// Stream returns a function that returns the time of the next request of a stream, until there is
// none.
func (it *Item) Stream(rng *rand.Rand) func() (time.Duration, bool) {
	var i int64
	var offset time.Duration // the time from the first request to the next one, without pauses
	return func() (time.Duration, bool) {
		at := it.From + offset
		if it.on > 0 {
			at += offset / it.on * it.off
		}
		isLast := it.rate.Count == 0 && i >= it.Count
		if isLast || at >= it.To || offset > maxDuration {
			return 0, false
		}
		i++
		switch {
		case it.rate.Count > 0 && it.isPoisson:
			mean := float64(it.rate.Period) / float64(it.rate.Count)
			offset += time.Duration(rng.ExpFloat64() * mean)
		case it.rate.Count > 0:
			offset = it.Join(i)
		default:
			offset += it.gap
		}
		return at.Truncate(time.Microsecond), true
	}
}

// Join returns when request or client i of the rate arrives, counted from the first one. Without a
// rate, all arrive at once.
func (it *Item) Join(i int64) time.Duration {
	if it.rate.Count == 0 {
		return 0
	}
	count, period := uint64(it.rate.Count), uint64(it.rate.Period)
	whole, rest := uint64(i)/count, uint64(i)%count
	if whole > uint64(maxDuration)/period {
		return maxDuration + 1
	}
	high, low := bits.Mul64(rest, period)
	part, _ := bits.Div64(high, low, count) // high < count, because rest < count
	return time.Duration(whole*period + part).Truncate(time.Microsecond)
}

// Think returns the time between an answer and the client's next request.
func (it *Item) Think(rng *rand.Rand) time.Duration {
	return (it.thinkMin + time.Duration(rng.Int64N(int64(it.thinkMax-it.thinkMin)+1))).Truncate(time.Microsecond)
}

// A name stands for arrivals that depend on the limit.
type name struct {
	word, about string
	arrivals    func(limit *penstock.Plan) string
}

var names = []name{
	{"burst", "five requests more than fit, and after a pause 20 slower ones", func(limit *penstock.Plan) string {
		return fmt.Sprintf("%d at 0s; 20 every 50ms from 5s", limit.Capacity()+5)
	}},
	{"steady", "exactly the rate, for ten periods", func(limit *penstock.Plan) string {
		return rateOf(limit, 1) + " for " + periods(limit, 10)
	}},
	{"poisson", "the rate on average, with random gaps", func(limit *penstock.Plan) string {
		return rateOf(limit, 1) + " poisson for " + periods(limit, 10)
	}},
	{"on-off", "twice the rate for a period, and then nothing for a period", func(limit *penstock.Plan) string {
		return rateOf(limit, 2) + " on " + periods(limit, 1) + " off " + periods(limit, 1) + " for " + periods(limit, 10)
	}},
	{"boundary", "the whole count shortly before a window ends, and again when it has ended", func(limit *penstock.Plan) string {
		l := limit.Limit()
		return fmt.Sprintf("%d at %v; %d at %v", l.Count, l.Period-l.Period/100, l.Count, l.Period)
	}},
	{"herd", "ten times the count in one moment; with --on-denied wait all come back together", func(limit *penstock.Plan) string {
		return fmt.Sprintf("%d at 0s", 10*min(limit.Limit().Count, 10_000))
	}},
	{"overload", "three times the rate, for 60 periods; the default with --regions", func(limit *penstock.Plan) string {
		return rateOf(limit, 3) + " poisson for " + periods(limit, 60)
	}},
	{"surge", "2,000 clients that join at 200/s and send a request every 0.1 to 0.3 s", func(*penstock.Plan) string {
		return "2000 clients joining 200/s every 100ms..300ms for 60s"
	}},
}

// Names returns a line for each name that may stand in the place of arrivals.
func Names() []string {
	var lines []string
	for _, n := range names {
		lines = append(lines, fmt.Sprintf("%-9s %s", n.word, n.about))
	}
	return lines
}

// named returns the name that a word is, or nil.
func named(word string) *name {
	for i := range names {
		if names[i].word == word {
			return &names[i]
		}
	}
	return nil
}

// rateOf writes a multiple of the limit's rate.
func rateOf(limit *penstock.Plan, times int64) string {
	l := limit.Limit()
	return fmt.Sprintf("%d/%v", times*l.Count, l.Period)
}

// periods writes a number of periods of the limit.
func periods(limit *penstock.Plan, n time.Duration) string {
	return (n * limit.Limit().Period).String()
}
