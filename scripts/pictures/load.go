package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
)

// A benchRecord is the file that the bench program saves: its tables by section.
type benchRecord struct {
	Machine, Date string
	Sections      map[string][]struct {
		Title string
		Rows  [][]string // the first has the names of the columns
	}
}

// A result is a row of a table of the bench program.
type result struct {
	rate   float64 // decisions per second
	factor float64 // ratio to the rate of the first row: the median over windows measured in turn
}

func (b benchRecord) find(section, keys, callers, name string) (r result, err error) {
	for _, table := range b.Sections[section] {
		for _, row := range table.Rows {
			if len(row) > 4 && row[0] == keys && row[1] == callers && row[2] == name {
				if r.rate, err = strconv.ParseFloat(row[3], 64); err == nil {
					r.factor, err = strconv.ParseFloat(row[4], 64)
				}
				return r, err
			}
		}
	}
	return r, fmt.Errorf("bench.json has no row %q, %q, %q of section %s; run: make bench", keys, callers, name, section)
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
	d.text(24, 56, "s muted", b.Machine+", "+b.Date)
	type bar struct {
		label, section, keys, callers, name, class string
	}
	groups := []struct {
		title string
		bars  []bar
	}{
		{"distinct keys, 64 callers", []bar{{"a script for each", "coalescing", "distinct", "64", "separate", "grey"}, {"coalesced (default)", "coalescing", "distinct", "64", "coalesced", "blue"}}},
		{"distinct keys, 512 callers", []bar{{"a script for each", "coalescing", "distinct", "512", "separate", "grey"}, {"coalesced (default)", "coalescing", "distinct", "512", "coalesced", "blue"}}},
		{"one hot key, 64 callers", []bar{{"a script for each", "guards", "hot", "64", "separate", "grey"}, {"coalesced (default)", "guards", "hot", "64", "coalesced", "blue"}, {"with lease: 100", "guards", "hot", "64", "lease of 100", "orange"}}},
	}
	results, most := map[bar]result{}, 0.
	for _, g := range groups {
		for _, bar := range g.bars {
			if results[bar], err = b.find(bar.section, bar.keys, bar.callers, bar.name); err != nil {
				return "", err
			}
			most = max(most, results[bar].rate)
		}
	}
	y := 78.
	for _, g := range groups {
		y += 22
		d.text(24, y, "b", g.title)
		for _, bar := range g.bars {
			y += 30
			n := results[bar].rate
			d.text(174, y, "s end", bar.label)
			d.rect(186, y-14, n/most*500, 20, bar.class)
			d.text(194+n/most*500, y+1, "s", fmt.Sprintf("%s (%.1f×)", thousands(n), results[bar].factor))
		}
		y += 18
	}
	return d.String(), nil
}

// thousands rounds a number to thousands: it formats 123456 as 123,000.
func thousands(n float64) string {
	text := strconv.Itoa(int(n/1000+0.5)) + ",000"
	if len(text) > 7 {
		text = text[:len(text)-7] + "," + text[len(text)-7:]
	}
	return text
}
