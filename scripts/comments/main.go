// Command comments finds lines of comments that have more than 100 columns. It checks the .go and
// .lua files below a folder, prints the place of each wide line, and fails if there are any. A tab
// counts as one column. The command skips generated files, comments behind code, and expected
// output of examples.
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

const maxColumns = 100

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
		fmt.Fprintf(os.Stderr, "comments: %d lines are wider than %d columns\n", len(wide), maxColumns)
		os.Exit(1)
	}
}

// findWide returns the places of all wide lines, in the form file:line.
func findWide(root fs.FS) (places []string, err error) {
	err = fs.WalkDir(root, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			isHidden := path != "." && strings.HasPrefix(entry.Name(), ".")
			if isHidden || path == "bin" {
				return fs.SkipDir
			}
			return nil
		}
		var find func(text []byte) (lines []int)
		switch filepath.Ext(path) {
		case ".go":
			find = wideInGo
		case ".lua":
			find = wideInLua
		default:
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
	generatedMark = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)
	outputMark    = regexp.MustCompile(`(?i)^//\s*(unordered )?output:`)
)

// wideInGo returns the numbers of the wide lines of comments in a Go file. It skips directives,
// because they cannot be wrapped.
func wideInGo(text []byte) (wide []int) {
	if generatedMark.Match(text) {
		return nil
	}
	lines := bytes.Split(text, []byte("\n"))
	files := token.NewFileSet()
	file := files.AddFile("", files.Base(), len(text))
	var s scanner.Scanner
	s.Init(file, text, nil, scanner.ScanComments)
	isExpectedOutput := false // whether the previous comment is expected output of an example
	last := 0                 // the last line of the previous comment
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
		continues := first == last+1 // the previous comment
		isExpectedOutput = outputMark.MatchString(comment) || isExpectedOutput && continues
		last = first + strings.Count(comment, "\n")
		if isExpectedOutput || strings.HasPrefix(comment, "//go:") {
			continue
		}
		for n := first; n <= last; n++ {
			if isWide(lines[n-1]) {
				wide = append(wide, n)
			}
		}
	}
}

// wideInLua returns the numbers of the wide lines of comments in a Lua file.
func wideInLua(text []byte) (wide []int) {
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

func isWide(line []byte) bool {
	return utf8.RuneCount(bytes.TrimSuffix(line, []byte("\r"))) > maxColumns
}
