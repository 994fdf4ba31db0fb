package main

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/penstock/penstock/internal/testing/loadaverage"
)

// A benchRecord is the file that the bench program saves: its sections.
type benchRecord map[string]struct {
	Machine string
	loadaverage.Record
	Tables []struct {
		Rows [][]string // the first has the names of the columns
	}
}

// A bar shows a row of a table of the bench program. The first three columns of the row are keys,
// callers and name. The next two are the decisions per second, and their ratio to those of the
// table's first row.
type bar struct {
	section, keys, callers, name string

	label, class string
	rate, factor float64
}

// read reads the rate and the factor of a bar.
func (b *bar) read(record benchRecord) (err error) {
	for _, table := range record[b.section].Tables {
		for _, row := range table.Rows {
			if len(row) < 5 || !slices.Equal(row[:3], []string{b.keys, b.callers, b.name}) {
				continue
			}
			if b.rate, err = strconv.ParseFloat(row[3], 64); err == nil {
				b.factor, err = strconv.ParseFloat(row[4], 64)
			}
			return err
		}
	}
	return fmt.Errorf("bench.json has no row for %+v; run make bench-data", *b)
}

// load shows how many more decisions per second coalescing and leases allow, with many callers.
func load(dir string) (string, error) {
	var record benchRecord
	if err := readJSON(filepath.Join(dir, "bench.json"), &record); err != nil {
		return "", err
	}
	d := &drawing{}
	d.text(24, 34, "h", "Decisions per second through one Redis, one core for the client")
	var measured []string // on which machine, when and at which load
	for _, section := range []string{"coalescing", "guards"} {
		s := record[section]
		measured = append(measured, fmt.Sprintf("%s, %s. %v", s.Machine, s.Date, s.Record))
	}
	d.text(24, 56, "s muted", strings.Join(slices.Compact(measured), " "))
	groups := []struct {
		title string
		bars  []bar
	}{
		{"distinct keys, 64 callers", bars("coalescing", "distinct", "64")},
		{"distinct keys, 512 callers", bars("coalescing", "distinct", "512")},
		{"one hot key, 64 callers", append(bars("guards", "hot", "64"), bar{section: "guards", keys: "hot", callers: "64", name: "lease of 100", label: "with lease: 100", class: "orange"})},
	}
	highest := 0. // decisions per second
	for _, g := range groups {
		for i := range g.bars {
			if err := g.bars[i].read(record); err != nil {
				return "", err
			}
			highest = max(highest, g.bars[i].rate)
		}
	}
	y := 78.
	for _, g := range groups {
		y += 22
		d.text(24, y, "b", g.title)
		for _, bar := range g.bars {
			y += 30
			const longest = 500 // pixels
			length := bar.rate / highest * longest
			d.text(174, y, "s end", bar.label)
			d.rect(186, y-14, length, 20, bar.class)
			d.text(194+length, y+1, "s", fmt.Sprintf("%s (%.1f×)", thousands(bar.rate), bar.factor))
		}
		y += 18
	}
	return d.svg(860, 420, "Coalescing and leases under load",
		"Decisions per second with a script for each request, with coalescing, and with leases, for distinct keys and for one hot key."), nil
}

func bars(section, keys, callers string) []bar {
	return []bar{
		{section: section, keys: keys, callers: callers, name: "separate", label: "a script for each", class: "grey"},
		{section: section, keys: keys, callers: callers, name: "coalesced", label: "coalesced (default)", class: "blue"},
	}
}

// thousands rounds a number to thousands, and formats it with commas: 123456 becomes 123,000.
func thousands(n float64) string {
	text := strconv.Itoa(int(n/1000+0.5)) + ",000"
	if len(text) > 7 {
		text = text[:len(text)-7] + "," + text[len(text)-7:]
	}
	return text
}
