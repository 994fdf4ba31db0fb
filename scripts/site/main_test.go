package main

import (
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// writeTree writes a small tree of pages, and files in addition. It returns the folder of the tree.
func writeTree(t *testing.T, files map[string]string) string {
	dir := t.TempDir()
	all := map[string]string{
		"README.md":       "# Front\n\n[docs](docs/README.md)\n",
		"CHANGELOG.md":    "# Changes\n",
		"CONTRIBUTING.md": "# Contributing\n",
		"SECURITY.md":     "# Security\n",
		"docs/README.md":  "# Index\n\n| word | page |\n| --- | --- |\n| unblock, reset | [Help](help.md#a--b) |\n| move | [Move](#move) |\n\n## Move\n\nguides\n",
		"docs/help.md":    "# Help\n\n## A & B\n\ntext <b>raw</b>\n\n```yaml\nkey: 1 # note <x>\n```\n",
	}
	for name, text := range files {
		all[name] = text
	}
	for name, text := range all {
		if err := writeFile(dir, name, text); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestBrokenLinksFail(t *testing.T) {
	for text, want := range map[string]string{ // want: a part of the error; "": no error
		"[x](none.md)":           "docs/more.md: broken link none.md",
		"[x](help.md#none)":      "docs/help.md has no heading #none",
		"[x](#none)":             "docs/more.md has no heading #none",
		"![x](none.svg)":         "broken link none.svg",
		"[x](../src/none.go)":    "broken link ../src/none.go",
		"[x](help.md#a--b)":      "",
		"[x](https://a.example)": "",
		"[x](#more)":             "",
		"`[x](none.md)`":         "",
	} {
		_, err := build(writeTree(t, map[string]string{"docs/more.md": "# More\n\n" + text + "\n"}), t.TempDir())
		switch {
		case want == "" && err != nil:
			t.Errorf("build of a page with %q returns the error %v; want none", text, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("build of a page with %q returns the error %v; want one that contains %q", text, err, want)
		}
	}
}

func TestPagesLinkWithinTheSite(t *testing.T) {
	out := t.TempDir()
	dir := writeTree(t, map[string]string{
		"docs/howto/a.md": "# A\n\n[h](../help.md#a--b) [code](../../src/a.go) [folder](../../src) ![p](../pictures/p.svg)\n",
		"src/a.go":        "package a", "docs/pictures/p.svg": "<svg/>",
	})
	if _, err := build(dir, out); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(out, "howto", "a.html"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`href="../help.html#a--b"`, `href="` + repository + `/blob/main/src/a.go"`, `href="` + repository + `/tree/main/src"`, `src="../pictures/p.svg"`,
		`href="../site.css"`, `aria-current="page"`,
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the page does not contain %s:\n%s", want, text)
		}
	}
	if _, err := os.Stat(filepath.Join(out, "pictures", "p.svg")); err != nil {
		t.Error(err)
	}
	help, err := os.ReadFile(filepath.Join(out, "help.html"))
	if err != nil {
		t.Fatal(err)
	}
	if want := `<span class="k">key</span>: 1<span class="c"> # note &lt;x&gt;</span>`; !strings.Contains(string(help), want) {
		t.Errorf("the page does not contain the marked code %s:\n%s", want, help)
	}
	if strings.Contains(string(help), "<b>raw") {
		t.Errorf("the page contains the raw HTML of the Markdown; want none:\n%s", help)
	}
}

func TestSearchIndexHasTheWordsOfTheIndex(t *testing.T) {
	out := t.TempDir()
	if _, err := build(writeTree(t, nil), out); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(out, "search-index.js"))
	if err != nil {
		t.Fatal(err)
	}
	index := strings.TrimSuffix(strings.TrimPrefix(string(text), "window.searchIndex = "), ";\n")
	var list []searchEntry
	if err := json.Unmarshal([]byte(index), &list); err != nil {
		t.Fatal(err)
	}
	for _, want := range []searchEntry{
		{URL: "help.html#a--b", Words: "unblock, reset", Name: "A & B", Text: "key: 1"},
		{URL: "documentation.html#move", Words: "move", Name: "Move", Text: "guides"}, // a link within the index
	} {
		isWanted := func(e searchEntry) bool {
			return e.URL == want.URL && e.Words == want.Words && e.Name == want.Name && strings.Contains(e.Text, want.Text)
		}
		if !slices.ContainsFunc(list, isWanted) {
			t.Errorf("no entry has the URL, words, name and text of %+v: %+v", want, list)
		}
	}
}

// TestSiteOfThisTree also checks that the pages load nothing from other hosts.
func TestSiteOfThisTree(t *testing.T) {
	out := t.TempDir()
	if _, err := build("../..", out); err != nil {
		t.Fatal(err)
	}
	foreign := regexp.MustCompile(`(?:src="|<link[^>]* href="|@import|url\()["']?(?:https?:)?//`)
	pages := 0
	err := filepath.WalkDir(out, func(name string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(name) != ".html" && filepath.Ext(name) != ".css" {
			return err
		}
		pages++
		text, err := os.ReadFile(name)
		if m := foreign.Find(text); m != nil {
			t.Errorf("%s loads something from another host: %s", name, m)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if pages < 30 {
		t.Errorf("the site has %d pages and style sheets; want at least 30", pages)
	}
	t.Logf("counted: %d pages of the site", pages)
}
