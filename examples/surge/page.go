package main

import (
	"fmt"
	"os"
	"strings"
)

// A page is a Markdown file with a place for the table of a run.
type page struct {
	file          string // "": there is no file
	before, after string // the text around the place
}

// openPage reads a file. Its line "<!-- surge: NAME -->" begins the place of a table, and the next
// line "<!-- end -->" ends it.
func openPage(file, name string) (page, error) {
	if file == "" {
		return page{}, nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return page{}, err
	}
	begin, end := "<!-- surge: "+name+" -->\n", "<!-- end -->\n"
	before, rest, hasBegin := strings.Cut(string(text), begin)
	_, after, hasEnd := strings.Cut(rest, end)
	if !hasBegin || !hasEnd {
		return page{}, fmt.Errorf("%s has no place for the table: want the lines %q and %q", file, strings.TrimSpace(begin), strings.TrimSpace(end))
	}
	return page{file: file, before: before + begin, after: end + after}, nil
}

// save writes the file with a new text in the place.
func (p page) save(text string) error {
	if p.file == "" {
		return nil
	}
	return os.WriteFile(p.file, []byte(p.before+text+p.after), 0o644)
}
