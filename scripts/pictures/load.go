package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/penstock/penstock/internal/loadaverage"
)

// A benchRecord is the file that the bench program saves: its sections.
type benchRecord map[string]struct {
	Machine string
	loadaverage.Record
	Tables []struct {
		Title string
		Rows  [][]string // the first has the names of the columns
	}
}

// circumstances says on which machine, when and at which load the sections were measured.
func (b benchRecord) circumstances(sections ...string) string {
	var all []string
	for _, name := range sections {
		s := b[name]
		text := fmt.Sprintf("%s, %s. %v", s.Machine, s.Date, s.Record)
		if !slices.Contains(all, text) {
			all = append(all, text)
		}
	}
	return strings.Join(all, " ")
}

// A result is a row of a table of the bench program.
type result struct {
	rate   float64 // decisions per second
	factor float64 // ratio to the rate of the table's first row; the median over all windows
}

// findResult returns the row of a section whose first three columns are keys, callers and name. The
// next two columns are the rate and the factor.
func (b benchRecord) findResult(section, keys, callers, name string) (r result, err error) {
	for _, table := range b[section].Tables {
		for _, row := range table.Rows {
			if len(row) < 5 || !slices.Equal(row[:3], []string{keys, callers, name}) {
				continue
			}
			if r.rate, err = strconv.ParseFloat(row[3], 64); err == nil {
				r.factor, err = strconv.ParseFloat(row[4], 64)
			}
			return r, err
		}
	}
	return r, fmt.Errorf("bench.json has no row with keys %q, callers %q and name %q in section %s; run make bench-data", keys, callers, name, section)
}

// load shows how many more decisions per second coalescing and leases allow, with many callers.
func load(dir string) (string, error) {
	text, err := os.ReadFile(filepath.Join(dir, "bench.json"))
	if err != nil {
		return "", err
	}
	var b benchRecord
	if err := json.Unmarshal(text, &b); err != nil {
		return "", err
	}
	d := &drawing{width: 860, height: 420, title: "Coalescing and leases under load",
		about: "Decisions per second with a script for each request, with coalescing, and with leases, for distinct keys and for one hot key."}
	d.text(24, 34, "h", "Decisions per second through one Redis, one core for the client")
	d.text(24, 56, "s muted", b.circumstances("coalescing", "guards"))
	type bar struct {
		section, keys, callers, name string // of the row of the bench program
		label, class                 string
	}
	separate := func(section, keys, callers string) bar {
		return bar{section, keys, callers, "separate", "a script for each", "grey"}
	}
	coalesced := func(section, keys, callers string) bar {
		return bar{section, keys, callers, "coalesced", "coalesced (default)", "blue"}
	}
	groups := []struct {
		title string
		bars  []bar
	}{
		{"distinct keys, 64 callers", []bar{separate("coalescing", "distinct", "64"), coalesced("coalescing", "distinct", "64")}},
		{"distinct keys, 512 callers", []bar{separate("coalescing", "distinct", "512"), coalesced("coalescing", "distinct", "512")}},
		{"one hot key, 64 callers", []bar{separate("guards", "hot", "64"), coalesced("guards", "hot", "64"), {"guards", "hot", "64", "lease of 100", "with lease: 100", "orange"}}},
	}
	results := make(map[bar]result)
	highest := 0. // decisions per second
	for _, g := range groups {
		for _, bar := range g.bars {
			if results[bar], err = b.findResult(bar.section, bar.keys, bar.callers, bar.name); err != nil {
				return "", err
			}
			highest = max(highest, results[bar].rate)
		}
	}
	y := 78.
	for _, g := range groups {
		y += 22
		d.text(24, y, "b", g.title)
		for _, bar := range g.bars {
			y += 30
			rate := results[bar].rate
			const longest = 500 // pixels
			length := rate / highest * longest
			d.text(174, y, "s end", bar.label)
			d.rect(186, y-14, length, 20, bar.class)
			d.text(194+length, y+1, "s", fmt.Sprintf("%s (%.1f×)", thousands(rate), results[bar].factor))
		}
		y += 18
	}
	return d.String(), nil
}

// thousands rounds a number to thousands, and formats it with commas: 123456 becomes 123,000.
func thousands(n float64) string {
	text := strconv.Itoa(int(n/1000+0.5)) + ",000"
	if len(text) > 7 {
		text = text[:len(text)-7] + "," + text[len(text)-7:]
	}
	return text
}
