package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/yuin/goldmark/ast"
	extast "github.com/yuin/goldmark/extension/ast"
)

// A searchEntry is a section of a page, as the search shows it.
type searchEntry struct {
	URL   string `json:"u"`
	Title string `json:"t"`           // of the page
	Name  string `json:"h,omitempty"` // of the section
	Words string `json:"w,omitempty"` // words of the index that link to the section
	Text  string `json:"x"`           // of the section
}

// searchIndex returns all sections as JSON. Each section has the words of the rows in
// docs/README.md whose first link leads to it.
func (s *pages) searchIndex() (string, error) {
	words := s.indexWords()
	var list []searchEntry
	for _, p := range s.all {
		entry := searchEntry{URL: p.URL, Title: p.Title} // the current section
		var text strings.Builder
		endSection := func() {
			entry.Text = strings.Join(strings.Fields(text.String()), " ")
			entry.Words = words[entry.URL]
			if entry.Text != "" || entry.Words != "" {
				list = append(list, entry)
			}
			text.Reset()
		}
		for n := p.document.FirstChild(); n != nil; n = n.NextSibling() {
			heading, isHeading := n.(*ast.Heading)
			if !isHeading {
				text.WriteString(plainText(n, p.markdown) + " ")
				continue
			}
			if heading.Level == 1 {
				continue // the title
			}
			endSection()
			anchor, _ := heading.AttributeString("id")
			entry = searchEntry{URL: p.URL + "#" + string(anchor.([]byte)), Title: p.Title, Name: plainText(heading, p.markdown)}
		}
		endSection()
	}
	text, err := json.Marshal(list)
	return string(text), err
}

// visitIndex calls visit for each row of the tables in docs/README.md, which is the index. It
// passes the words in the first cell of the row, and the targets of the links in the last cell. The
// targets are URLs in the site or elsewhere, and never only an anchor.
func (s *pages) visitIndex(visit func(words string, targets []string)) {
	p := s.bySource["docs/README.md"]
	if p == nil {
		return
	}
	_ = ast.Walk(p.document, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		row, ok := n.(*extast.TableRow)
		if !ok || !entering {
			return ast.WalkContinue, nil
		}
		var targets []string
		_ = ast.Walk(row.LastChild(), func(n ast.Node, entering bool) (ast.WalkStatus, error) {
			if l, ok := n.(*ast.Link); ok && entering {
				target := string(l.Destination)
				if strings.HasPrefix(target, "#") { // a link within the index
					target = p.URL + target
				}
				targets = append(targets, target)
			}
			return ast.WalkContinue, nil
		})
		visit(plainText(row.FirstChild(), p.markdown), targets)
		return ast.WalkSkipChildren, nil
	})
}

// indexWords returns the words of the index, by the first target in the row of the words.
func (s *pages) indexWords() map[string]string {
	words := make(map[string]string)
	s.visitIndex(func(text string, targets []string) {
		if len(targets) > 0 {
			words[targets[0]] = strings.TrimSpace(words[targets[0]] + " " + text)
		}
	})
	return words
}

// foundLine matches a line of results. The line has a word, the URLs of the sections that were
// found, and a period, so that no white space is at its end.
var foundLine = regexp.MustCompile(`(?m)^FOUND\t(.*?)\t(.*?)\t.*$`)

// checkSearch searches for each word of the index in Chromium. One of the first five results must
// be a page that the index names for the word.
func checkSearch(s *pages, folder string) error {
	type query struct {
		word    string
		targets []string
	}
	var queries []query
	s.visitIndex(func(text string, targets []string) {
		for word := range strings.SplitSeq(text, ", ") {
			if len(targets) > 0 && !strings.HasPrefix(targets[0], "https://") {
				queries = append(queries, query{word, targets})
			}
		}
	})
	var list []string
	for _, q := range queries {
		list = append(list, q.word)
	}
	words, err := json.Marshal(list)
	if err != nil {
		return err
	}
	script := `<!doctype html><meta charset="utf-8"><pre id="out"></pre><script src="search-index.js"></script><script src="site.js"></script><script>
document.getElementById("out").textContent = ` + string(words) + `.map(w => "FOUND\t" + w + "\t" + search(w, 5).map(r => r.u).join(" ") + "\t.").join("\n");</script>`
	file := filepath.Join(folder, "check.html")
	if err := os.WriteFile(file, []byte(script), 0o644); err != nil {
		return err
	}
	defer os.Remove(file)
	absolute, err := filepath.Abs(file)
	if err != nil {
		return err
	}
	out, err := exec.Command("chromium", "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", "file://"+absolute).Output()
	if err != nil {
		return fmt.Errorf("chromium: %w", err)
	}
	results := make(map[string][]string) // URLs by word
	// In the page, the first line of results follows this tag.
	printed := html.UnescapeString(strings.ReplaceAll(string(out), `<pre id="out">`, "\n"))
	for _, m := range foundLine.FindAllStringSubmatch(printed, -1) {
		word, urls := m[1], m[2]
		results[word] = strings.Fields(urls)
	}
	var missing []error
	found := 0
	for _, q := range queries {
		isFound := false
		for _, target := range q.targets {
			page, _, _ := strings.Cut(target, "#")
			for _, url := range results[q.word] {
				isFound = isFound || strings.HasPrefix(url, page)
			}
		}
		if isFound {
			found++
		} else {
			missing = append(missing, fmt.Errorf("the search for %q finds %q; want one of %q", q.word, results[q.word], q.targets))
		}
	}
	fmt.Printf("search: %d of %d words of the index find their page among the first five results\n", found, len(queries))
	return errors.Join(missing...)
}
