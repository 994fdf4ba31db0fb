// Command words finds words that this project does not use, such as private names for things that
// have a standard term. The list is words.txt. The command reads all .go, .lua, .md, .yaml and .yml
// files below a folder. It prints each place, and a better word. It fails if there are any.
package main

import (
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

//go:embed words.txt
var list string

func main() {
	root := "."
	if len(os.Args) > 1 {
		root = os.Args[1]
	}
	words, err := parse(list)
	if err == nil {
		err = words.check(os.DirFS(root), os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "words:", err)
		os.Exit(1)
	}
}

// words is the list of words to find.
type words struct {
	find    *regexp.Regexp    // matches each of them
	instead map[string]string // by word: what to write instead
}

// parse reads a list of lines such as "bunch, bunches = batch".
func parse(list string) (w words, err error) {
	w.instead = make(map[string]string)
	var patterns []string
	for n, line := range strings.Split(list, "\n") {
		if line == "" || line[0] == '#' {
			continue
		}
		left, right, ok := strings.Cut(line, " = ")
		if !ok {
			return w, fmt.Errorf("words.txt:%d: %q has no \" = \" with what to write instead", n+1, line)
		}
		for phrase := range strings.SplitSeq(left, ", ") {
			w.instead[phrase] = right
			patterns = append(patterns, strings.ReplaceAll(regexp.QuoteMeta(phrase), " ", `(?: |\n[ \t]*(?://|--|#)? ?)`))
		}
	}
	slices.SortFunc(patterns, func(a, b string) int { return len(b) - len(a) }) // the longest first
	w.find, err = regexp.Compile(`\b(?:` + strings.Join(patterns, "|") + `)\b`)
	return w, err
}

// isOwn reports whether a file belongs to this command, and so must contain the words.
func isOwn(path string) bool { return strings.HasPrefix(path, "scripts/words/") }

// check writes each place to out. It fails if there are any.
func (w words) check(root fs.FS, out *os.File) error {
	found := 0
	err := fs.WalkDir(root, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		isHidden := path != "." && strings.HasPrefix(entry.Name(), ".")
		if entry.IsDir() && (isHidden || path == "bin" || entry.Name() == "node_modules") {
			return fs.SkipDir
		}
		if entry.IsDir() || !slices.Contains([]string{".go", ".lua", ".md", ".yaml", ".yml"}, filepath.Ext(path)) || isOwn(path) {
			return nil
		}
		text, err := fs.ReadFile(root, path)
		if err != nil {
			return err
		}
		for _, match := range w.findIn(string(text)) {
			found++
			fmt.Fprintf(out, "%s:%d: %q; write: %s\n", path, match.line, match.word, w.instead[match.word])
		}
		return nil
	})
	if err == nil && found > 0 {
		err = errors.New(fmt.Sprint(found, " words of scripts/words/words.txt are used"))
	}
	return err
}

// A match is a place of a word in a text.
type match struct {
	line int
	word string
}

var (
	nameBoundary = regexp.MustCompile(`([a-z0-9])([A-Z])|_`) // between the words of a name
	gap          = regexp.MustCompile(`\s+(?://|--|#)?\s*`)  // between the words of a phrase, which may break over lines of a comment
)

// findIn finds the words in a text.
func (w words) findIn(text string) (matches []match) {
	text = strings.ToLower(nameBoundary.ReplaceAllString(text, "$1 $2"))
	for _, at := range w.find.FindAllStringIndex(text, -1) {
		matches = append(matches, match{1 + strings.Count(text[:at[0]], "\n"), gap.ReplaceAllString(text[at[0]:at[1]], " ")})
	}
	return matches
}
