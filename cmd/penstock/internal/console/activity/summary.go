package activity

import (
	"bytes"
	"cmp"
	"compress/flate"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"slices"
	"strings"
	"time"
)

// A Summary is the activity that one instance shows to the others. Its text has at most MaxSummary
// bytes.
type Summary struct {
	Version string    `json:"version"`
	Host    string    `json:"host"`
	PID     int       `json:"pid,omitempty"` // of the process; 0: unknown
	Digest  string    `json:"digest"`        // of the policy
	Started time.Time `json:"started"`
	Written time.Time `json:"written"` // by the clock of the instance
	Seed    uint32    `json:"seed"`    // hashes of instances with equal numbers can be compared; see SeedID
	Health  string    `json:"health"`  // why the store fails; "" if it works

	// IsChargedTwice is true if requests have come that another instance with the same policy had
	// charged.
	IsChargedTwice bool `json:"charged_twice,omitempty"`

	Events   []Event     `json:"-"` // the oldest first; a text has only the latest
	Counts   []Count     `json:"-"`
	Activity []*Activity `json:"-"` // activity by window, in the order of Windows
}

// A Count is how much a series has grown in the last 10 and 60 seconds.
type Count struct {
	Series
	Last10 uint64 `json:"s"`
	Last60 uint64 `json:"m"`
}

const (
	MaxSummary   = 16 << 10  // bytes of a text
	maxUnpacked  = 256 << 10 // bytes of an unpacked text
	maxCounts    = 400       // counts of a summary
	maxField     = 128       // bytes of a field, such as a version or a name
	summaryItems = 50        // items of a Top
	summaryKeys  = 256       // hashes of a Distinct
	minKeys      = 16        // hashes of a Distinct: fewer would make its estimate useless
)

// headerSize is the size of the header of a text in bytes: the format version, and a checksum of 4.
const headerSize = 1 + 4

// formatVersion is the first byte of a text. Instances ignore texts with another first byte.
const formatVersion = 1

var ErrFormat = errors.New("the summary has another format")

// SeedID returns a number that distinguishes seeds and does not reveal them.
func SeedID(seed uint64) uint32 { return uint32(sharedHash(seed, nil, "penstock") >> 40) }

func (r *Recorder) Summary() *Summary {
	s := &Summary{Seed: SeedID(r.options.Seed)}
	for _, w := range Windows() {
		s.Activity = append(s.Activity, r.Activity(w))
	}
	last10 := r.history.Since(10)
	for series, n := range r.history.Since(60) {
		s.Counts = append(s.Counts, Count{series, last10[series], n})
	}
	slices.SortFunc(s.Counts, func(a, b Count) int {
		return cmp.Or(cmp.Compare(b.Last60, a.Last60), compareSeries(a.Series, b.Series))
	})
	return s
}

// packed is the form of a summary in JSON. Short names of fields keep it small.
type packed struct {
	*Summary
	Events  []Event          `json:"events,omitempty"`
	Counts  []Count          `json:"counts"`
	Windows []packedActivity `json:"windows"`
}

type packedActivity struct {
	Tops   []Top          `json:"tops"`
	Denied packedDistinct `json:"denied"`
}

type packedDistinct struct {
	Size         int        `json:"size"`
	Missed       uint64     `json:"missed,omitempty"`
	Hashes       string     `json:"hashes"` // in base64, 8 bytes each
	LimitIndexes []uint16   `json:"of"`     // for each hash, the index of its limit in Names
	Names        [][]string `json:"names"`  // for each limit, its rule and its name
}

// Text packs the summary. If it would be too long, the lightest items and some hashes are left out.
func (s *Summary) Text() (string, error) {
	items, keys := summaryItems, summaryKeys
	for {
		text, err := s.pack(items, keys)
		if err != nil || len(text) <= MaxSummary {
			return text, err
		}
		if items == 0 {
			return "", fmt.Errorf("the summary has %d bytes without any items; at most %d are allowed", len(text), MaxSummary)
		}
		items, keys = items/2, keys/2
	}
}

// pack packs the summary with at most items items of each Top, 8 times as many counts, 80 times as
// many bytes of events, and keys hashes of each Distinct.
func (s *Summary) pack(items, keys int) (string, error) {
	head := *s
	head.Version, head.Host, head.Digest, head.Health = cut(s.Version), cut(s.Host), cut(s.Digest), cut(s.Health)
	p := packed{Summary: &head, Events: latestEvents(s.Events, 80*items), Counts: s.Counts[:min(len(s.Counts), maxCounts, 8*items)]}
	for _, a := range s.Activity {
		var w packedActivity
		for _, t := range a.Tops {
			short := *t
			short.Cut(items)
			w.Tops = append(w.Tops, short)
		}
		w.Denied = packDistinct(*a.Denied, max(keys, minKeys))
		p.Windows = append(p.Windows, w)
	}
	plain, err := json.Marshal(p)
	if err != nil {
		return "", err
	}
	var out bytes.Buffer
	out.WriteByte(formatVersion)
	out.Write(binary.BigEndian.AppendUint32(nil, crc32.ChecksumIEEE(plain)))
	w, err := flate.NewWriter(&out, flate.DefaultCompression)
	if err == nil {
		_, err = w.Write(plain)
	}
	if err == nil {
		err = w.Close()
	}
	return out.String(), err
}

// latestEvents returns the latest events whose JSON has at most the given number of bytes in all.
func latestEvents(all []Event, bytes int) []Event {
	first := len(all)
	for first > 0 {
		text, err := json.Marshal(all[first-1])
		if bytes -= len(text); err != nil || bytes < 0 {
			break
		}
		first--
	}
	return all[first:]
}

// cut returns at most the first maxField bytes of a text. It cuts between characters: JSON would
// replace a part of a character by a longer one.
func cut(text string) string {
	return strings.ToValidUTF8(text[:min(len(text), maxField)], "")
}

func packDistinct(d Distinct, keys int) packedDistinct {
	d.Cut(keys)
	p := packedDistinct{Size: d.Size, Missed: d.Missed}
	indexes := make(map[Series]uint16) // in p.Names
	var hashes []byte
	for _, h := range d.Hashes {
		limit := Series{Rule: h.Rule, Limit: h.Limit}
		index, ok := indexes[limit]
		if !ok {
			index = uint16(len(indexes))
			indexes[limit] = index
			p.Names = append(p.Names, []string{h.Rule, h.Limit})
		}
		p.LimitIndexes = append(p.LimitIndexes, index)
		hashes = binary.BigEndian.AppendUint64(hashes, h.Hash)
	}
	p.Hashes = base64.RawStdEncoding.EncodeToString(hashes)
	return p
}

// ParseSummary reads a text that another instance has written. It trusts nothing in it: any program
// that may write to the store can have written it.
func ParseSummary(text string) (*Summary, error) {
	if len(text) > MaxSummary {
		return nil, fmt.Errorf("the summary has %d bytes; at most %d are allowed", len(text), MaxSummary)
	}
	if len(text) < headerSize || text[0] != formatVersion {
		return nil, ErrFormat
	}
	plain, err := io.ReadAll(io.LimitReader(flate.NewReader(bytes.NewReader([]byte(text[headerSize:]))), maxUnpacked+1))
	if err != nil {
		return nil, err
	}
	if len(plain) > maxUnpacked {
		return nil, fmt.Errorf("the summary has more than %d bytes when it is unpacked", maxUnpacked)
	}
	if crc32.ChecksumIEEE(plain) != binary.BigEndian.Uint32([]byte(text[1:headerSize])) {
		return nil, errors.New("the summary has a wrong checksum")
	}
	p := packed{Summary: new(Summary)}
	if err := json.Unmarshal(plain, &p); err != nil {
		return nil, err
	}
	return p.unpack()
}

var errCorrupt = errors.New("the summary has a value that Penstock does not write")

func (p *packed) unpack() (*Summary, error) {
	s := p.Summary
	if s == nil || len(p.Counts) > maxCounts || len(p.Windows) != len(Windows()) {
		return nil, errCorrupt
	}
	for _, field := range []string{s.Version, s.Host, s.Digest, s.Health} {
		if len(field) > maxField {
			return nil, errCorrupt
		}
	}
	for i := range p.Events {
		if i == MaxEvents || !p.Events[i].isValid() {
			return nil, errCorrupt
		}
	}
	s.Events = p.Events
	for _, c := range p.Counts {
		hasLabels := isLabel(c.Rule) && isLabel(c.Limit) && isLabel(c.Name)
		if !hasLabels || c.Last10 > c.Last60 {
			return nil, errCorrupt
		}
	}
	s.Counts = p.Counts
	for i := range p.Windows {
		w := &p.Windows[i]
		if len(w.Tops) != int(kindCount) {
			return nil, errCorrupt
		}
		a := new(Activity)
		for k := range w.Tops {
			top := &w.Tops[k]
			if !top.isValid() {
				return nil, errCorrupt
			}
			top.sort()
			a.Tops[k] = top
		}
		var err error
		if a.Denied, err = w.Denied.unpack(); err != nil {
			return nil, err
		}
		s.Activity = append(s.Activity, a)
	}
	return s, nil
}

// isValid reports whether Penstock may have written t in a summary.
func (t *Top) isValid() bool {
	isWrong := func(i Item) bool {
		hasVariance := i.Variance >= 0 && !math.IsInf(i.Variance, 0) // false for NaN
		hasNames := isLabel(i.Rule) && isLabel(i.Limit) && isName(i.Name)
		return !hasNames || !hasVariance || i.Error > i.Weight
	}
	return len(t.Items) <= summaryItems && !slices.ContainsFunc(t.Items, isWrong)
}

func (p *packedDistinct) unpack() (*Distinct, error) {
	hashes, err := base64.RawStdEncoding.DecodeString(p.Hashes)
	if err != nil || len(hashes) != 8*len(p.LimitIndexes) || len(p.LimitIndexes) > p.Size {
		return nil, errCorrupt
	}
	if p.Size < minKeys || p.Size > distinctSize {
		return nil, errCorrupt
	}
	d := &Distinct{Size: p.Size, Missed: p.Missed}
	for i, index := range p.LimitIndexes {
		if int(index) >= len(p.Names) || len(p.Names[index]) != 2 {
			return nil, errCorrupt
		}
		rule, limit := p.Names[index][0], p.Names[index][1]
		if !isLabel(rule) || !isLabel(limit) {
			return nil, errCorrupt
		}
		h := DistinctHash{binary.BigEndian.Uint64(hashes[8*i:]), rule, limit}
		if i > 0 && h.Hash <= d.Hashes[i-1].Hash {
			return nil, errCorrupt
		}
		d.Hashes = append(d.Hashes, h)
	}
	return d, nil
}

// isLabel reports whether a text may be the name of a rule, limit or series: visible ASCII.
func isLabel(text string) bool {
	return len(text) <= maxField && !strings.ContainsFunc(text, func(c rune) bool { return c <= ' ' || c > '~' })
}

// isName reports whether a text may be the name of a key in the store.
func isName(text string) bool { return text != "" && len(text) <= MaxName && isLabel(text) }

// A Fleet is the activity of all instances that share a store, from their summaries.
type Fleet struct {
	Instances  []Instance  // this one first
	Registered int         // instances with a current heartbeat
	Ignored    Ignored     // summaries that could not be used
	Problem    string      // why the summaries of other instances could not be read; "" if they were
	Activity   []*Activity // activity of all instances, by window, in the order of Windows
	At         time.Time   // when the summaries were read
}

// Ignored counts summaries that could not be used, since the start.
type Ignored struct{ OtherVersion, Corrupt, OtherSecret int64 }

type Instance struct {
	Name   string
	IsSelf bool
	*Summary
}
