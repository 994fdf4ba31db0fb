package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/penstock/penstock/internal/testing/loadaverage"
)

// Sections of one file may be measured on different days. Each keeps its day and its load.
func TestSavedSectionsKeepTheirLoad(t *testing.T) {
	file := filepath.Join(t.TempDir(), "bench.json")
	save := func(section, date string, load float64) {
		r := report{saved: map[string][]savedTable{section: {{Title: date, Rows: [][]string{{"a"}}}}}}
		if err := r.save(file, loadaverage.Record{Date: date, LoadBefore: &load, LoadAfter: &load}); err != nil {
			t.Fatal(err)
		}
	}
	save("client", "2026-11-23", 0.25)
	save("guards", "2026-11-23", 0.5)
	save("guards", "2026-11-28", 0.75)
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]savedSection
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	for section, want := range map[string]struct {
		date string
		load float64
	}{"client": {"2026-11-23", 0.25}, "guards": {"2026-11-28", 0.75}} {
		s := got[section]
		if s.Date != want.date || s.LoadBefore == nil || *s.LoadBefore != want.load || len(s.Tables) != 1 || s.Tables[0].Title != want.date || s.Machine == "" {
			t.Errorf("%s is saved as %+v; want the date %s, the load %v, a table and the machine", section, s, want.date, want.load)
		}
	}
}
