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
	const priority = 100 // lower than 1000, so that codeRenderer replaces the default renderer
	s.markdown = goldmark.New(goldmark.WithExtensions(extension.GFM),
		goldmark.WithRendererOptions(renderer.WithNodeRenderers(util.Prioritized(codeRenderer{}, priority))))
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

// readHeadings sets the title and the sections of the page. It gives each heading the anchor that
// it has on GitHub.
func (p *page) readHeadings() error {
	uses := make(map[string]int) // by anchor without a number
	err := ast.Walk(p.document, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		heading, isHeading := n.(*ast.Heading)
		if !isHeading || !entering {
			return ast.WalkContinue, nil
		}
		title := plainText(heading, p.markdown)
		anchor := anchorOf(title)
		before := uses[anchor]
		uses[anchor]++
		if before > 0 {
			anchor = fmt.Sprintf("%s-%d", anchor, before)
		}
		heading.SetAttributeString("id", []byte(anchor))
		if heading.Level == 1 && p.Title == "" {
			p.Title = title
		} else {
			p.Sections = append(p.Sections, section{title, anchor, heading.Level})
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

// anchorOf returns the anchor of the first heading with a title. Later headings with the same title
// get a number in addition.
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
	isSection := slices.ContainsFunc(to.Sections, func(sec section) bool { return sec.Anchor == u.Fragment })
	isTitle := anchorOf(to.Title) == u.Fragment
	if !isSection && !isTitle {
		return target, fmt.Errorf("%s has no heading #%s", to.source, u.Fragment)
	}
	if to == p {
		result = "" // a link in the same page
	}
	return result + "#" + u.Fragment, nil
}

// relative returns the path from the page at from to the file at to. Both are paths in the site.
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

// An entry is a link in the navigation.
type entry struct {
	Title, URL string
	IsCurrent  bool // it is the shown page
}

// A groupSpec defines which pages are in a group: those of a folder, and those with some names.
type groupSpec struct {
	title  string
	folder string   // "": no folder
	names  []string // paths of pages in the tree, in the order of the navigation
}

func (g *groupSpec) has(p *page) bool {
	isInFolder := g.folder != "" && path.Dir(p.source) == g.folder
	return isInFolder || slices.Contains(g.names, p.source)
}

// A page belongs to the first of these groups that has it. All other pages belong to the last
// group.
var groupSpecs = []groupSpec{
	{title: "Start", names: []string{"README.md", "docs/getting-started.md", "docs/README.md", "docs/guarantees.md", "docs/comparison.md", "docs/algorithms.md"}},
	{title: "How to", folder: "docs/howto"},
	{title: "Configuration", folder: "docs/configuration", names: []string{"docs/configuration.md"}},
	{title: "Migrate from", folder: "docs/migrate", names: []string{"docs/envoy-ratelimit.md"}},
	{title: "Decisions", folder: "docs/decisions"},
	{title: "Project", names: []string{"docs/architecture.md", "docs/adding-an-algorithm.md", "docs/glossary.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"}},
	{title: "Reference"},
}

// groups returns the navigation of a page.
func (s *pages) groups(current *page) []group {
	groups := make([]group, len(groupSpecs))
	for i, spec := range groupSpecs {
		groups[i].Title = spec.title
	}
	for _, p := range s.all {
		i := slices.IndexFunc(groupSpecs, func(spec groupSpec) bool { return spec.has(p) })
		if i < 0 {
			i = len(groupSpecs) - 1
		}
		title, _, _ := strings.Cut(p.Title, ": ")
		groups[i].Pages = append(groups[i].Pages, entry{title, p.URL, p == current})
		groups[i].IsOpen = groups[i].IsOpen || p == current
	}
	for i, spec := range groupSpecs {
		position := func(e entry) int { // pages without a name in spec are the last
			at := slices.IndexFunc(spec.names, func(name string) bool { return urlOf(name) == e.URL })
			if at < 0 {
				return len(spec.names)
			}
			return at
		}
		slices.SortStableFunc(groups[i].Pages, func(a, b entry) int { return position(a) - position(b) })
	}
	// In the navigation, the reference comes before the pages for contributors.
	order := []string{"Start", "How to", "Configuration", "Reference", "Migrate from", "Project", "Decisions"}
	slices.SortStableFunc(groups, func(a, b group) int { return slices.Index(order, a.Title) - slices.Index(order, b.Title) })
	return groups
}
