package main

import (
	"fmt"
	"testing"
)

func TestWordsAreFound(t *testing.T) {
	w, err := parse("# a comment\nbunch, bunches = batch\nunder way = in flight\n")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		text string
		want string // each match as {line word}
	}{
		{"a batch is in flight", "[]"},
		{"one\nA Bunch of", "[{2 bunch}]"},
		{"bunchSize lastBunch max_bunches BUNCH", "[{1 bunch} {1 bunch} {1 bunches} {1 bunch}]"},
		{"bunched rebunch", "[]"},
		{"// it is under\n\t// way", "[{1 under way}]"},
		{"-- under\n-- way", "[{1 under way}]"},
		{"# under\n  way", "[{1 under way}]"},
		{"it goes under. Way back", "[]"},
	} {
		if got := fmt.Sprint(w.findIn(c.text)); got != c.want {
			t.Errorf("findIn(%q) returns %s; want %s", c.text, got, c.want)
		}
	}
	if _, err := parse("bunch\n"); err == nil {
		t.Error("parse of a word without a replacement returns no error; want one")
	}
}

func TestListIsValid(t *testing.T) {
	w, err := parse(list)
	if err != nil || len(w.instead) < 20 {
		t.Errorf("the list has %d words (error %v); want at least 20", len(w.instead), err)
	}
}
