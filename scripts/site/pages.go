package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/renderer"
	"github.com/yuin/goldmark/text"
	"github.com/yuin/goldmark/util"
)

// A page is one Markdown file.
type page struct {
	source   string // its path in the tree, with slashes
	URL      string // its path in the site
	Title    string
	Sections []section // headings below the title

	markdown []byte
	document ast.Node
}

// A section is a heading below the title.
type section struct {
	Title, Anchor string
	Level         int
}

// pages has all pages of the site, and their pictures.
type pages struct {
	all      []*page
	bySource map[string]*page
	pictures map[string]bool // paths in the tree

	markdown goldmark.Markdown
}

// topPages are the pages outside docs.
var topPages = []string{"README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"}

// load parses all pages of a tree.
func load(tree string) (*pages, error) {
	s := &pages{bySource: make(map[string]*page), pictures: make(map[string]bool)}
	s.markdown = goldmark.New(goldmark.WithExtensions(extension.GFM), goldmark.WithRendererOptions(renderer.WithNodeRenderers(util.Prioritized(codeRenderer{}, 100))))
	names := slices.Clone(topPages)
	err := filepath.WalkDir(filepath.Join(tree, "docs"), func(name string, _ fs.DirEntry, err error) error {
		if err == nil && filepath.Ext(name) == ".md" {
			name, err = filepath.Rel(tree, name)
			names = append(names, filepath.ToSlash(name))
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		markdown, err := os.ReadFile(filepath.Join(tree, filepath.FromSlash(name)))
		if err != nil {
			return nil, err
		}
		p := &page{source: name, URL: urlOf(name), markdown: markdown}
		p.document = s.markdown.Parser().Parse(text.NewReader(markdown), parser.WithContext(parser.NewContext()))
		if err := p.readHeadings(); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		s.all = append(s.all, p)
		s.bySource[name] = p
	}
	return s, nil
}

// urlOf returns the page's path in the site. README.md is the front page, and docs/README.md is the
// index.
func urlOf(source string) string {
	switch source {
	case "README.md":
		return "index.html"
	case "docs/README.md":
		return "documentation.html"
	}
	return strings.ToLower(strings.TrimSuffix(siteName(source), ".md")) + ".html"
}

// readHeadings gives each heading the anchor that it has on GitHub.
func (p *page) readHeadings() error {
	used := make(map[string]int)
	err := ast.Walk(p.document, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		h, ok := n.(*ast.Heading)
		if !ok || !entering {
			return ast.WalkContinue, nil
		}
		title := plainText(h, p.markdown)
		anchor := anchorOf(title)
		if n := used[anchor]; n > 0 {
			used[anchor]++
			anchor = fmt.Sprintf("%s-%d", anchor, n)
		} else {
			used[anchor] = 1
		}
		h.SetAttributeString("id", []byte(anchor))
		if h.Level == 1 && p.Title == "" {
			p.Title = title
		} else {
			p.Sections = append(p.Sections, section{title, anchor, h.Level})
		}
		return ast.WalkSkipChildren, nil
	})
	if err == nil && p.Title == "" {
		err = errors.New("the page has no title")
	}
	return err
}

// dropped matches the characters of a title that GitHub leaves out of its anchor.
var dropped = regexp.MustCompile(`[^\p{L}\p{N} _-]`)

func anchorOf(title string) string {
	return strings.ReplaceAll(dropped.ReplaceAllString(strings.ToLower(title), ""), " ", "-")
}

// plainText returns the text of a node without its formatting.
func plainText(n ast.Node, source []byte) string {
	var b strings.Builder
	_ = ast.Walk(n, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		switch n := n.(type) {
		case *ast.Text:
			if entering {
				b.Write(n.Segment.Value(source))
				if n.SoftLineBreak() || n.HardLineBreak() {
					b.WriteByte(' ')
				}
			}
		case *ast.String:
			if entering {
				b.Write(n.Value)
			}
		case *ast.FencedCodeBlock:
			if entering {
				for i := range n.Lines().Len() {
					line := n.Lines().At(i)
					b.Write(line.Value(source))
				}
			}
		default:
			if !entering && n.Type() == ast.TypeBlock || n.Kind().String() == "TableCell" {
				b.WriteByte(' ')
			}
		}
		return ast.WalkContinue, nil
	})
	return strings.TrimSpace(b.String())
}

// resolveLinks rewrites the links of all pages, and returns an error that names each broken one.
func (s *pages) resolveLinks(tree string) error {
	var broken []error
	for _, p := range s.all {
		_ = ast.Walk(p.document, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
			if !entering {
				return ast.WalkContinue, nil
			}
			var destination *[]byte
			isPicture := false
			switch n := n.(type) {
			case *ast.Link:
				destination = &n.Destination
			case *ast.Image:
				destination, isPicture = &n.Destination, true
			default:
				return ast.WalkContinue, nil
			}
			target, err := s.resolve(tree, p, string(*destination), isPicture)
			if err != nil {
				broken = append(broken, fmt.Errorf("%s: broken link %s: %w", p.source, *destination, err))
			}
			*destination = []byte(target)
			return ast.WalkContinue, nil
		})
	}
	return errors.Join(broken...)
}

// resolve returns the target that a link in a page gets in the site: a page, a picture, or a file
// in the repository.
func (s *pages) resolve(tree string, p *page, target string, isPicture bool) (string, error) {
	u, err := url.Parse(target)
	if err != nil || u.Scheme != "" {
		return target, err
	}
	source := p.source
	if u.Path != "" {
		source = path.Join(path.Dir(p.source), u.Path)
	}
	info, err := os.Stat(filepath.Join(tree, filepath.FromSlash(source)))
	if err != nil {
		return target, err
	}
	if isPicture {
		s.pictures[source] = true
		return relative(p.URL, siteName(source)), nil
	}
	to := s.bySource[source]
	if to == nil {
		kind := "blob"
		if info.IsDir() {
			kind = "tree"
		}
		return repository + "/" + kind + "/main/" + source, nil
	}
	result := relative(p.URL, to.URL)
	if u.Fragment == "" {
		return result, nil
	}
	hasHeading := slices.ContainsFunc(to.Sections, func(sec section) bool { return sec.Anchor == u.Fragment }) || anchorOf(to.Title) == u.Fragment
	if !hasHeading {
		return target, fmt.Errorf("%s has no heading #%s", to.source, u.Fragment)
	}
	if to == p {
		result = ""
	}
	return result + "#" + u.Fragment, nil
}

// relative returns the path from one page to another file of the site.
func relative(from, to string) string {
	return strings.Repeat("../", strings.Count(from, "/")) + to
}

// render returns the HTML of a page's text.
func (s *pages) render(p *page) (string, error) {
	var b strings.Builder
	err := s.markdown.Renderer().Render(&b, p.markdown, p.document)
	// A wide table gets a scroll bar of its own.
	html := strings.NewReplacer("<table>", `<div class="wide"><table>`, "</table>", "</table></div>").Replace(b.String())
	return html, err
}

// A group is a part of the navigation.
type group struct {
	Title  string
	Pages  []entry
	IsOpen bool // the shown page is in it
}

type entry struct {
	Title, URL string
	IsCurrent  bool
}

// places define the groups: by a folder, or by the names of pages. A page belongs to the first
// place that fits. All other pages belong to the last place.
var places = []struct {
	title, folder string
	names         []string
}{
	{"Start", "", []string{"README.md", "docs/getting-started.md", "docs/README.md", "docs/guarantees.md", "docs/comparison.md", "docs/algorithms.md"}},
	{"How to", "docs/howto", nil},
	{"Configuration", "docs/configuration", []string{"docs/configuration.md"}},
	{"Migrate from", "docs/migrate", []string{"docs/envoy-ratelimit.md"}},
	{"Decisions", "docs/decisions", nil},
	{"Project", "", []string{"docs/architecture.md", "docs/adding-an-algorithm.md", "docs/glossary.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"}},
	{"Reference", "", nil},
}

// groups returns the navigation of a page.
func (s *pages) groups(current *page) []group {
	groups := make([]group, len(places))
	for i, place := range places {
		groups[i].Title = place.title
	}
	indexIn := func(p *page, names []string) int { return slices.Index(names, p.source) }
	for _, p := range s.all {
		i := slices.IndexFunc(places, func(place struct {
			title, folder string
			names         []string
		}) bool {
			return indexIn(p, place.names) >= 0 || place.folder != "" && path.Dir(p.source) == place.folder || place.title == "Reference"
		})
		title, _, _ := strings.Cut(p.Title, ": ")
		groups[i].Pages = append(groups[i].Pages, entry{title, p.URL, p == current})
		groups[i].IsOpen = groups[i].IsOpen || p == current
	}
	for i, place := range places {
		slices.SortStableFunc(groups[i].Pages, func(a, b entry) int {
			position := func(e entry) int {
				at := slices.IndexFunc(place.names, func(name string) bool { return urlOf(name) == e.URL })
				if at < 0 {
					at = len(place.names)
				}
				return at
			}
			return position(a) - position(b)
		})
	}
	// The reference comes before the pages for contributors.
	order := []string{"Start", "How to", "Configuration", "Reference", "Migrate from", "Project", "Decisions"}
	slices.SortStableFunc(groups, func(a, b group) int { return slices.Index(order, a.Title) - slices.Index(order, b.Title) })
	return groups
}
