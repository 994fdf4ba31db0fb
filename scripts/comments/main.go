// Command comments finds comments that are too wide to read. It names each line of a comment above
// 100 columns in the .go and .lua files below a folder, and fails if there are any. A tab is one
// column. It skips generated files, comments behind code, and expected output of examples.
package main

import (
	"bytes"
	"fmt"
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"unicode/utf8"
)

const columns = 100

func main() {
	root := "."
	if len(os.Args) > 1 {
		root = os.Args[1]
	}
	wide, err := findWide(os.DirFS(root))
	if err != nil {
		fmt.Fprintln(os.Stderr, "comments:", err)
		os.Exit(1)
	}
	for _, place := range wide {
		fmt.Println(place)
	}
	if len(wide) > 0 {
		fmt.Fprintf(os.Stderr, "comments: %d lines are wider than %d columns\n", len(wide), columns)
		os.Exit(1)
	}
}

// findWide returns the places, as file:line, of all lines that are too wide.
func findWide(root fs.FS) (places []string, err error) {
	err = fs.WalkDir(root, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		find := map[string]func([]byte) []int{".go": inGo, ".lua": inLua}[filepath.Ext(path)]
		isHidden := path != "." && strings.HasPrefix(entry.Name(), ".")
		switch {
		case entry.IsDir() && (isHidden || path == "bin"):
			return fs.SkipDir
		case entry.IsDir() || find == nil:
			return nil
		}
		text, err := fs.ReadFile(root, path)
		if err != nil {
			return err
		}
		for _, line := range find(text) {
			places = append(places, fmt.Sprintf("%s:%d", path, line))
		}
		return nil
	})
	return places, err
}

var (
	generated = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)
	output    = regexp.MustCompile(`(?i)^//\s*(unordered )?output:`)
)

// inGo finds the wide lines of comments in a Go file. A directive cannot be wrapped.
func inGo(text []byte) (wide []int) {
	if generated.Match(text) {
		return nil
	}
	lines := bytes.Split(text, []byte("\n"))
	files := token.NewFileSet()
	file := files.AddFile("", files.Base(), len(text))
	var s scanner.Scanner
	s.Init(file, text, nil, scanner.ScanComments)
	isExpected, last := false, 0 // of the previous comment: whether it is expected output, and its last line
	for {
		at, kind, comment := s.Scan()
		if kind == token.EOF {
			return wide
		}
		first := file.Line(at)
		if kind != token.COMMENT {
			continue
		}
		if before := lines[first-1][:file.Position(at).Column-1]; len(bytes.TrimSpace(before)) > 0 {
			continue // it is behind code
		}
		isExpected = output.MatchString(comment) || isExpected && first == last+1
		last = first + strings.Count(comment, "\n")
		if isExpected || strings.HasPrefix(comment, "//go:") {
			continue
		}
		for n := first; n <= last; n++ {
			if isWide(lines[n-1]) {
				wide = append(wide, n)
			}
		}
	}
}

// inLua finds the wide lines of comments in a Lua file.
func inLua(text []byte) (wide []int) {
	isInBlock := false
	for i, line := range bytes.Split(text, []byte("\n")) {
		trimmed := bytes.TrimSpace(line)
		isInBlock = isInBlock || bytes.HasPrefix(trimmed, []byte("--[["))
		if (isInBlock || bytes.HasPrefix(trimmed, []byte("--"))) && isWide(line) {
			wide = append(wide, i+1)
		}
		isInBlock = isInBlock && !bytes.Contains(line, []byte("]]"))
	}
	return wide
}

func isWide(line []byte) bool { return utf8.RuneCount(bytes.TrimSuffix(line, []byte("\r"))) > columns }
