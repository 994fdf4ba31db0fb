// Command words finds words that this project does not use, such as private names for things that
// have a standard term. The list is words.txt. It reads all .go, .lua, .md, .yaml and .yml files
// below a folder, names each place with what to write instead, and fails if there are any.
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

// words are the words to find, and by the words of each what to write instead.
type words struct {
	find    *regexp.Regexp
	instead map[string]string
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

// isOwn reports whether a file must name the words.
func isOwn(path string) bool { return strings.HasPrefix(path, "scripts/words/") }

// check writes each place to out. It fails if there are any.
func (w words) check(root fs.FS, out *os.File) error {
	found := 0
	err := fs.WalkDir(root, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if hidden := path != "." && strings.HasPrefix(entry.Name(), "."); entry.IsDir() && (hidden || path == "bin" || entry.Name() == "node_modules") {
			return fs.SkipDir
		}
		if entry.IsDir() || !slices.Contains([]string{".go", ".lua", ".md", ".yaml", ".yml"}, filepath.Ext(path)) || isOwn(path) {
			return nil
		}
		text, err := fs.ReadFile(root, path)
		if err != nil {
			return err
		}
		for _, hit := range w.in(string(text)) {
			found++
			fmt.Fprintf(out, "%s:%d: %q; write: %s\n", path, hit.line, hit.word, w.instead[hit.word])
		}
		return nil
	})
	if err == nil && found > 0 {
		err = errors.New(fmt.Sprint(found, " words of scripts/words/words.txt are used"))
	}
	return err
}

type hit struct {
	line int
	word string
}

var (
	inName = regexp.MustCompile(`([a-z0-9])([A-Z])|_`)
	gap    = regexp.MustCompile(`\s+(?://|--|#)?\s*`)
)

// in finds the words in a text.
func (w words) in(text string) (hits []hit) {
	text = strings.ToLower(inName.ReplaceAllString(text, "$1 $2"))
	for _, at := range w.find.FindAllStringIndex(text, -1) {
		hits = append(hits, hit{1 + strings.Count(text[:at[0]], "\n"), gap.ReplaceAllString(text[at[0]:at[1]], " ")})
	}
	return hits
}
