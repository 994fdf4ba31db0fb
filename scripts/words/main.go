// Command words finds words that this project does not use, such as private names for things that
// have a standard term. The list is words.txt. The command reads all .go, .lua, .md, .yaml and .yml
// files below a folder. It prints each place of such a word, and a better word. It fails if there
// is such a place.
package main

import (
	_ "embed"
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
	find    *regexp.Regexp    // matches any of the words
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
			// A space of a phrase may be a line break, also in a comment.
			patterns = append(patterns, strings.ReplaceAll(regexp.QuoteMeta(phrase), " ", `(?: |\n[ \t]*(?://|--|#)? ?)`))
		}
	}
	slices.SortFunc(patterns, func(a, b string) int { return len(b) - len(a) }) // the longest first
	w.find, err = regexp.Compile(`\b(?:` + strings.Join(patterns, "|") + `)\b`)
	return w, err
}

// isOwn reports whether a file belongs to this command. Such a file must contain the words.
func isOwn(path string) bool { return strings.HasPrefix(path, "scripts/words/") }

// check writes each place of a word to out. It returns an error if there is such a place.
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
		isText := slices.Contains([]string{".go", ".lua", ".md", ".yaml", ".yml"}, filepath.Ext(path))
		if entry.IsDir() || !isText || isOwn(path) {
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
		err = fmt.Errorf("words of scripts/words/words.txt are used in %d places", found)
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
	phraseGap    = regexp.MustCompile(`\s+(?://|--|#)?\s*`)  // between the words of a phrase, which may be on two lines of a comment
)

// findIn finds the words in a text.
func (w words) findIn(text string) (matches []match) {
	text = strings.ToLower(nameBoundary.ReplaceAllString(text, "$1 $2"))
	for _, at := range w.find.FindAllStringIndex(text, -1) {
		matches = append(matches, match{1 + strings.Count(text[:at[0]], "\n"), phraseGap.ReplaceAllString(text[at[0]:at[1]], " ")})
	}
	return matches
}
