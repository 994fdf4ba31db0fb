package activity

import (
	"bytes"
	"compress/flate"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"
)

// busySummary returns the summary of an instance with many limits, and many denied keys with long
// names.
func busySummary(t testing.TB) *Summary {
	f := newFixture(t, testPolicy, Options{Names: plainNames, Seed: 1})
	r := rand.New(rand.NewPCG(1, 1))
	for i := range 3000 {
		f.observeDenied(f.rules.Plans()[i%2], fmt.Sprintf("key:%0110d", r.IntN(1000)), r.Uint32())
		f.decide(fmt.Sprintf("client-%d", r.IntN(300)))
	}
	f.Tick(time.Second, func(add func(Series, uint64)) {
		for i := range 600 {
			add(Series{fmt.Sprint("rule-with-a-long-name-", i), "limit", "allowed"}, r.Uint64N(1e9))
		}
	})
	s := f.Summary()
	s.Version, s.Host, s.Digest, s.Started, s.Written = "v1.2.3", "host", "abc", time.Unix(1, 0).UTC(), time.Unix(2, 0).UTC()
	return s
}

func TestParsedSummaryEqualsTheWrittenOne(t *testing.T) {
	quiet := New(Options{}).Summary()
	for name, s := range map[string]*Summary{"quiet": quiet, "busy": busySummary(t)} {
		text, err := s.Text()
		if err != nil || len(text) > MaxSummary {
			t.Fatalf("%s: the summary has %d bytes and the error %v; want at most %d and no error", name, len(text), err, MaxSummary)
		}
		read, err := ParseSummary(text)
		if err != nil {
			t.Fatalf("%s: the summary cannot be parsed: %v", name, err)
		}
		t.Logf("counted: %s: %d bytes, %d counts, %d offenders", name, len(text), len(read.Counts), len(read.Activity[0].Tops[Denied].Items))
		if again, err := read.Text(); err != nil || len(again) > MaxSummary {
			t.Errorf("%s: written again, the summary has %d bytes and the error %v; want at most %d and no error", name, len(again), err, MaxSummary)
		}
		if read.Version != s.Version || !read.Started.Equal(s.Started) || read.Seed != s.Seed {
			t.Errorf("%s: %+v was read as %+v; want the same", name, s, read)
		}
		for i, c := range read.Counts {
			if c != s.Counts[i] {
				t.Fatalf("%s: the count %v was read as %v; want the same", name, s.Counts[i], c)
			}
		}
		for w, a := range read.Activity {
			for k, top := range a.Tops {
				want := *s.Activity[w].Tops[k]
				want.Cut(len(top.Items))
				if top.Total != want.Total || top.Floor != want.Floor || len(top.Items) > 0 && !reflect.DeepEqual(top.Items, want.Items) {
					t.Errorf("%s: the top %v was read as %v; want the same", name, want, top)
				}
			}
			n, deviation := a.Denied.Count()
			if want, _ := s.Activity[w].Denied.Count(); n < want-5*deviation || n > want+5*deviation {
				t.Errorf("%s: %v different keys were read as %v ± %v; want at most 5 deviations of difference", name, want, n, deviation)
			}
		}
	}
}

func TestLongFieldsAreCutBetweenCharacters(t *testing.T) {
	s := New(Options{}).Summary()
	s.Health = strings.Repeat("x", maxField-1) + "é"
	text, err := s.Text()
	if err != nil {
		t.Fatal(err)
	}
	if read, err := ParseSummary(text); err != nil || read.Health != strings.Repeat("x", maxField-1) {
		t.Errorf("a long field is read as %+v, %v; want all of its characters that fit", read, err)
	}
}

// forge packs JSON as a summary with the right version and checksum.
func forge(plain string) string {
	var out bytes.Buffer
	out.WriteByte(formatVersion)
	out.Write(binary.BigEndian.AppendUint32(nil, crc32.ChecksumIEEE([]byte(plain))))
	w, _ := flate.NewWriter(&out, flate.BestCompression)
	w.Write([]byte(plain))
	w.Close()
	return out.String()
}

func TestBadSummariesAreRejected(t *testing.T) {
	good, err := busySummary(t).Text()
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"empty": "", "another version": "\x02" + good[1:], "short": good[:4],
	} {
		if _, err := ParseSummary(text); !errors.Is(err, ErrFormat) {
			t.Errorf("%s: the error is %v; want ErrFormat", name, err)
		}
	}
	tops := `{"total":0,"floor":0,"items":[]}`
	windows := func(top, denied string) string {
		one := `{"tops":[` + strings.TrimSuffix(strings.Repeat(top+",", int(kindCount)), ",") + `],"denied":` + denied + `}`
		return `{"windows":[` + one + `,` + one + `]}`
	}
	none := `{"size":16,"hashes":"","of":[],"names":[]}`
	if _, err := ParseSummary(forge(windows(tops, none))); err != nil {
		t.Fatalf("a forged summary without faults has the error %v; want none", err)
	}
	wrong := []byte(forge(windows(tops, none)))
	wrong[2] ^= 1
	bad := map[string]string{
		"a wrong checksum": string(wrong),
		"cut off":          good[:len(good)-10], "changed": good[:100] + "x" + good[101:], "too long": good + strings.Repeat("x", MaxSummary),
		"a bomb": forge(`{"version":"` + strings.Repeat("x", 8*maxUnpacked) + `"}`), "no JSON": forge("x"), "null": forge("null"), "an array": forge("[]"), "no windows": forge("{}"),
		"a long version":  forge(strings.Replace(windows(tops, none), "{", `{"version":"`+strings.Repeat("x", maxField+1)+`",`, 1)),
		"a key with HTML": forge(windows(`{"items":[{"r":"a","l":"b","k":"<b> x","w":1}]}`, none)),
		"a long key":      forge(windows(`{"items":[{"r":"a","l":"b","k":"`+strings.Repeat("x", MaxName+1)+`","w":1}]}`, none)),
		"a large error":   forge(windows(`{"items":[{"r":"a","l":"b","k":"x","w":1,"e":2}]}`, none)),
		"many items":      forge(windows(`{"items":[`+strings.Repeat(`{"r":"a","l":"b","k":"x","w":1},`, 60)+`{"k":"x"}]}`, none)),
		"half a hash":     forge(windows(tops, `{"size":16,"hashes":"AAAA","of":[0],"names":[["a","b"]]}`)),
		"no such name":    forge(windows(tops, `{"size":16,"hashes":"AAAAAAAAAAA","of":[3],"names":[["a","b"]]}`)),
		"a negative size": forge(windows(tops, `{"size":-1,"hashes":"","of":[],"names":[]}`)),
		"equal hashes":    forge(windows(tops, `{"size":16,"hashes":"AAAAAAAAAAAAAAAAAAAAAA","of":[0,0],"names":[["a","b"]]}`)),
	}
	for name, text := range bad {
		if s, err := ParseSummary(text); err == nil || errors.Is(err, ErrFormat) {
			t.Errorf("%s: parsed as %v, %v; want an error other than ErrFormat", name, s, err)
		}
	}
	t.Logf("counted: %d bad summaries", len(bad)+3)
}

func FuzzParseSummary(f *testing.F) {
	good, _ := New(Options{}).Summary().Text()
	f.Add(good)
	f.Add(forge(`{"windows":[{},{}]}`))
	f.Fuzz(func(t *testing.T, text string) {
		for _, text := range []string{text, forge(text)} {
			s, err := ParseSummary(text)
			if err != nil {
				continue
			}
			MergeActivities(summaryItems, s.Activity...)
			for _, a := range s.Activity {
				a.Denied.Count()
				for i := range a.Tops[Denied].Items {
					a.Tops[Denied].Items[i].Bounds()
				}
			}
		}
	})
}
