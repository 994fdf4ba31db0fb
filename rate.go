package penstock

import (
	"fmt"
	"math"
	"math/big"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/penstock/penstock/algorithm"
)

// ParseRate reads a limit as people write it:
//
//	100/s   10 per minute   5/30s   100 per 15 minutes   3/500ms   40 per 1h30m
//	10k/day   1.5M/hour   2 million per week   10,000 per day   1_000/h
//	5 writes per second   100 requests/minute   3/s, burst 10   10-M
//
// The count must be a whole number; 1.5k is 1500. Commas or underscores may separate its digits. k
// and thousand multiply it by 1,000, M and million by 1,000,000. One word may say what is counted.
// The period follows '/' or "per". It is a unit (us, ms, s, min, h, d, w or a word for it), or one
// or more numbers with units. In the form 10-M the period is S, M, H or D. ", burst N" sets the
// Burst.
//
// The limit's Name is second, minute, hour or day, as in PerSecond and so on. For another period it
// is "every-" and the period, such as every-30s. If two limits have the same period, rename one
// with WithName. An error wraps ErrInvalid. It says what is wrong, at which character, and what to
// write instead.
func ParseRate(text string) (Limit, error) {
	limit, err := parseRate(text)
	if err != nil {
		return Limit{}, fmt.Errorf("%w: rate %s: %w", ErrInvalid, quote(text), err)
	}
	return limit, nil
}

func parseRate(text string) (Limit, error) {
	if len(text) > maxRateBytes || !utf8.ValidString(text) {
		return Limit{}, fmt.Errorf("the text is longer than %d bytes, or is not UTF-8; write a rate such as 100/s", maxRateBytes)
	}
	r := rateReader{text: text}
	count, err := r.count()
	if err != nil {
		return Limit{}, err
	}
	period, err := r.period()
	if err != nil {
		return Limit{}, err
	}
	burst, err := r.burst()
	if err != nil {
		return Limit{}, err
	}
	// This checks what every algorithm requires. Validate checks the rest once the algorithm is
	// chosen.
	_, err = FixedWindow.Prepare(algorithm.Limit{Count: count, Period: period.Microseconds(), Burst: burst})
	return Per(count, period).WithBurst(burst), err
}

// maxRateBytes is the longest text of a rate, in bytes. It bounds the time that parsing takes.
const maxRateBytes = 128

// A word after a number multiplies it, is a unit of time, or names what is counted.
var (
	multipliers = map[string]int64{"k": 1e3, "thousand": 1e3, "m": 1e6, "million": 1e6}

	timeUnits = map[string]time.Duration{
		"us": time.Microsecond, "µs": time.Microsecond, "μs": time.Microsecond,
		"microsecond": time.Microsecond, "microseconds": time.Microsecond,
		"ms": time.Millisecond, "msec": time.Millisecond, "millisecond": time.Millisecond, "milliseconds": time.Millisecond,
		"s": time.Second, "sec": time.Second, "secs": time.Second, "second": time.Second, "seconds": time.Second,
		"m": time.Minute, "min": time.Minute, "mins": time.Minute, "minute": time.Minute, "minutes": time.Minute,
		"h": time.Hour, "hr": time.Hour, "hrs": time.Hour, "hour": time.Hour, "hours": time.Hour,
		"d": day, "day": day, "days": day,
		"w": 7 * day, "week": 7 * day, "weeks": 7 * day,
	}

	// unclearWords has words that are not accepted as names of what is counted. A reader could take
	// them for a multiplier or a unit, which would change the limit. The values are hints for the
	// error.
	unclearWords = map[string]string{
		"hundred": "write the number in digits", "dozen": "write the number in digits",
		"billion": "write the number in digits", "bn": "write the number in digits", "trillion": "write the number in digits",
		"mio": "write M for a million", "mn": "write M for a million", "mm": "write M for a million",
		"mil": "write k for a thousand or M for a million", "g": "write the number in digits", "t": "write the number in digits",
		"percent": "a limit counts units", "pct": "a limit counts units",
		"kb": bytesHint, "mb": bytesHint, "gb": bytesHint, "tb": bytesHint,
		"kib": bytesHint, "mib": bytesHint, "gib": bytesHint, "tib": bytesHint,
		"kbit": bytesHint, "mbit": bytesHint, "gbit": bytesHint, "kbps": bytesHint, "mbps": bytesHint, "gbps": bytesHint,
	}

	// unitOfAbbreviation has words such as "rpm", which name both what is counted and a period. The
	// values are the units of time in them.
	unitOfAbbreviation = map[string]string{
		"rps": "s", "qps": "s", "tps": "s", "rpm": "min", "qpm": "min", "tpm": "min", "rph": "h", "qph": "h", "rpd": "d", "qpd": "d", "tpd": "d",
	}

	// unevenUnits has the words for periods that differ in length. The values are hints for the
	// error.
	unevenUnits = map[string]string{
		"mo": monthHint, "mon": monthHint, "month": monthHint, "months": monthHint,
		"y": yearHint, "yr": yearHint, "year": yearHint, "years": yearHint,
	}
)

const (
	day       = 24 * time.Hour
	bytesHint = "to count bytes, write 10k or 10M and charge them as the cost"
	monthHint = "months differ in length: write 30 days, or use CalendarWindow with Month"
	yearHint  = "years differ in length: write 365 days"
	rateHint  = "write 100/s, 10 per minute or 5/30s"
)

// A rateReader parses a rate from left to right.
type rateReader struct {
	text string
	at   int // the index in text of the next byte to read
}

// count reads everything up to the period: the number, its multiplier and the word for what is
// counted.
func (r *rateReader) count() (int64, error) {
	r.skipSpace()
	start := r.at
	n, isInteger, err := r.number()
	if err != nil {
		return 0, err
	}
	numberEnd := r.at
	r.skipSpace()
	wordAt := r.at
	word := r.word()
	factor, isMultiplier := multipliers[strings.ToLower(word)]
	if isMultiplier && word == "m" {
		return 0, r.errorAt(wordAt, "%q is not clear; write M for a million, or /min for a minute", word)
	}
	hasSpace := word == "" || wordAt > numberEnd
	needsSpace := unitOfAbbreviation[strings.ToLower(word)] == "" && !strings.EqualFold(word, "per")
	switch {
	case isMultiplier:
		n.Mul(n, new(big.Rat).SetInt64(factor))
		r.skipSpace()
		wordAt = r.at
		word = r.word()
	case !isInteger:
		return 0, r.errorAt(start, "%q is not a whole number; write 5/2s for 2.5 per second, and 1000 or 1,000 for a thousand",
			r.text[start:numberEnd])
	case needsSpace && !hasSpace:
		return 0, r.errorAt(wordAt, "%q follows the count without a space; only k and M may", word)
	}
	if !n.IsInt() || !n.Num().IsInt64() {
		return 0, r.errorAt(start, "the count is not a whole number below 2^63")
	}
	if err := r.checkCounted(wordAt, word); err != nil {
		return 0, err
	}
	return n.Num().Int64(), nil
}

// checkCounted checks the word between the count and the period, whose index in the text is wordAt.
// This word should name what is counted, such as "requests". If the word is "per", checkCounted
// moves the reader back to its first letter.
func (r *rateReader) checkCounted(wordAt int, word string) error {
	lower := strings.ToLower(word)
	_, isUnit := timeUnits[lower]
	_, isMultiplier := multipliers[lower]
	rest := strings.TrimSpace(r.text[r.at:])
	switch {
	case unitOfAbbreviation[lower] != "" && (rest == "" || rest[0] == ','):
		return r.errorAt(wordAt, "%q is not a period; write %s/%s", word, strings.TrimSpace(r.text[:wordAt]), unitOfAbbreviation[lower])
	case lower == "per":
		r.at = wordAt
	case unclearWords[lower] != "":
		return r.errorAt(wordAt, "%q is not a word for what is counted; %s", word, unclearWords[lower])
	case isUnit || isMultiplier || unevenUnits[lower] != "":
		return r.errorAt(wordAt, "%q is where / or per should be; %s", word, rateHint)
	}
	return nil
}

// period reads '/' or "per" and the duration after it, or '-' and a letter.
func (r *rateReader) period() (time.Duration, error) {
	r.skipSpace()
	start := r.at
	switch {
	case r.take("/"):
	case r.take("-"):
		return r.periodLetter()
	case strings.EqualFold(r.word(), "per"):
	default:
		if start < len(r.text) {
			return 0, r.errorAt(start, "%q is where / or per should be; %s", r.text[start:], rateHint)
		}
		return 0, r.errorAt(start, "the period is missing; %s", rateHint)
	}
	r.skipSpace()
	start = r.at
	total, err := r.duration() // nanoseconds
	if err != nil {
		return 0, err
	}
	micros := new(big.Rat).Quo(total, new(big.Rat).SetInt64(int64(time.Microsecond)))
	switch {
	case total.Sign() == 0:
		return 0, r.errorAt(start, "the period is 0; %s", rateHint)
	case total.Cmp(new(big.Rat).SetInt64(math.MaxInt64)) > 0:
		return 0, r.errorAt(start, "the period is too long; the longest is 8 years")
	case !micros.IsInt():
		return 0, r.errorAt(start, "the period is not a whole number of microseconds")
	}
	return time.Duration(total.Num().Int64()), nil
}

// duration reads one or more numbers with units, such as 1h30m, and returns their sum in
// nanoseconds. The first number may be missing, as in the s of 100/s. Then it is 1.
func (r *rateReader) duration() (*big.Rat, error) {
	total := new(big.Rat)
	for {
		start := r.at
		n := big.NewRat(1, 1)
		if isDigit(r.peek()) {
			var err error
			if n, _, err = r.number(); err != nil {
				return nil, err
			}
			r.skipSpace()
		}
		unit, err := r.unit(start)
		if err != nil {
			return nil, err
		}
		total.Add(total, n.Mul(n, new(big.Rat).SetInt64(int64(unit))))
		r.skipSpace()
		if !isDigit(r.peek()) {
			return total, nil
		}
	}
}

// unit reads a unit of time. The number before the unit, if there is one, begins at start. The
// error explains why the text is not a unit.
func (r *rateReader) unit(start int) (time.Duration, error) {
	at := r.at
	word := r.word()
	lower := strings.ToLower(word)
	hasNumber := at > start
	switch {
	case word == "M":
		return 0, r.errorAt(at, "M could be a minute or a month; write min")
	case unevenUnits[lower] != "":
		return 0, r.errorAt(at, "%q is not a fixed time; %s", word, unevenUnits[lower])
	case timeUnits[lower] != 0:
		return timeUnits[lower], nil
	case word == "" && hasNumber:
		return 0, r.errorAt(at, "the number needs a unit: us, ms, s, min, h, d or w")
	case word == "":
		return 0, r.errorAt(at, "the period is missing; write a unit (us, ms, s, min, h, d, w) or a time such as 30s")
	}
	if unit := unitOfAbbreviation[lower]; unit != "" {
		return 0, r.errorAt(at, "%q is not a unit of time; write %s", word, unit)
	}
	return 0, r.errorAt(at, "%q is not a unit of time; there are us, ms, s, min, h, d and w, and the words for them", word)
}

// periodLetter reads the period of the form 10-M.
func (r *rateReader) periodLetter() (time.Duration, error) {
	at := r.at
	switch strings.ToUpper(r.word()) {
	case "S":
		return time.Second, nil
	case "M":
		return time.Minute, nil
	case "H":
		return time.Hour, nil
	case "D":
		return day, nil
	}
	return 0, r.errorAt(at, "'-' must be followed by S, M, H or D; for other periods write 5/30s")
}

// burst reads the ", burst N" that may follow the period. Nothing may follow the burst.
func (r *rateReader) burst() (int64, error) {
	r.skipSpace()
	start := r.at
	hasComma := r.take(",")
	r.skipSpace()
	word := r.word()
	if word == "" && !hasComma && r.at == len(r.text) {
		return 0, nil
	}
	if !strings.EqualFold(word, "burst") {
		return 0, r.errorAt(start, "%q follows the rate; only \", burst N\" may", r.text[start:])
	}
	r.skipSpace()
	at := r.at
	n, isInteger, err := r.number()
	if err != nil {
		return 0, err
	}
	numberEnd := r.at
	r.skipSpace()
	wordAt := r.at
	word = r.word()
	if factor, isMultiplier := multipliers[strings.ToLower(word)]; isMultiplier && word != "m" {
		n.Mul(n, new(big.Rat).SetInt64(factor))
		isInteger, numberEnd = true, r.at
		r.skipSpace()
	} else {
		r.at = wordAt
	}
	switch {
	case !isInteger || !n.IsInt() || !n.Num().IsInt64():
		return 0, r.errorAt(at, "the burst %q is not a whole number below 2^63", r.text[at:numberEnd])
	case n.Sign() == 0:
		return 0, r.errorAt(at, "the burst is 0; leave it out for a burst of the count, or write 1")
	case r.at < len(r.text):
		return 0, r.errorAt(r.at, "%q follows the burst; nothing may", r.text[r.at:])
	}
	return n.Num().Int64(), nil
}

// number reads digits with commas, underscores and a decimal point. isInteger is false if there is
// a decimal point.
func (r *rateReader) number() (n *big.Rat, isInteger bool, err error) {
	start := r.at
	for {
		isBetweenDigits := r.at > start && r.at+1 < len(r.text) && isDigit(r.text[r.at+1])
		isSeparator := strings.IndexByte("_,.", r.peek()) >= 0 && isBetweenDigits
		if !isDigit(r.peek()) && !isSeparator {
			break
		}
		r.at++
	}
	text := r.text[start:r.at]
	if text == "" {
		return nil, false, r.errorAt(start, "a number is missing here; %s", rateHint)
	}
	integer, fraction, hasPoint := strings.Cut(text, ".")
	if groups := strings.Split(integer, ","); len(groups) > 1 {
		for i, g := range groups {
			isFirst := i == 0
			hasRightLength := len(g) == 3 || isFirst && len(g) < 3
			if !hasRightLength || strings.Contains(g, "_") {
				return nil, false, r.errorAt(start, "%q has commas that do not separate groups of three digits; write 10,000 or 10000", text)
			}
		}
	}
	if strings.ContainsAny(fraction, "_,.") {
		return nil, false, r.errorAt(start, "%q is not a number; write 10000, 10,000 or 1.5k", text)
	}
	n, ok := new(big.Rat).SetString(strings.NewReplacer(",", "", "_", "").Replace(text))
	if !ok {
		return nil, false, r.errorAt(start, "%q is not a number; write 10000, 10,000 or 1.5k", text)
	}
	return n, !hasPoint, nil
}

func (r *rateReader) word() string {
	start := r.at
	for r.at < len(r.text) {
		c, size := utf8.DecodeRuneInString(r.text[r.at:])
		if !unicode.IsLetter(c) {
			break
		}
		r.at += size
	}
	return r.text[start:r.at]
}

func (r *rateReader) skipSpace() {
	for r.peek() == ' ' || r.peek() == '\t' {
		r.at++
	}
}

// take reads a token if it comes next. It returns false if another text comes next.
func (r *rateReader) take(token string) bool {
	if !strings.HasPrefix(r.text[r.at:], token) {
		return false
	}
	r.at += len(token)
	return true
}

// peek returns the next byte without reading it, or 0 at the end.
func (r *rateReader) peek() byte {
	if r.at < len(r.text) {
		return r.text[r.at]
	}
	return 0
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

// errorAt returns an error about the character at text[index]. The error begins with the number of
// this character, which is 1 for the first.
func (r *rateReader) errorAt(index int, format string, args ...any) error {
	number := utf8.RuneCountInString(r.text[:index]) + 1
	return fmt.Errorf("character %d: "+format, append([]any{number}, args...)...)
}

// quote quotes a text for an error. It shortens texts of more than maxRateBytes bytes.
func quote(text string) string {
	if len(text) > maxRateBytes {
		text = text[:maxRateBytes] + "…"
	}
	return fmt.Sprintf("%q", text)
}

// periodName names a limit after its period.
func periodName(period time.Duration) string {
	switch period {
	case time.Second:
		return "second"
	case time.Minute:
		return "minute"
	case time.Hour:
		return "hour"
	case day:
		return "day"
	}
	if period%day == 0 {
		return fmt.Sprintf("every-%dd", period/day)
	}
	return "every-" + strings.Replace(algorithm.PeriodText(period), "µ", "u", 1)
}
