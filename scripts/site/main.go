// Command site makes static pages with a search from the Markdown files of this tree: README.md,
// docs and a few more. The pages need no server, and load nothing from the network. The command
// fails if a link is broken.
//
//	go run ./site [-check] TREE FOLDER
//
// With -check it also opens the pages in Chromium, and searches for the words of docs/README.md.
package main

import (
	"embed"
	"errors"
	"flag"
	"fmt"
	"html/template"
	"log"
	"os"
	"path"
	"path/filepath"
	"strings"
)

//go:embed assets
var assets embed.FS

// repository is the URL for links to files that are not pages of the site.
const repository = "https://github.com/penstock/penstock"

func main() {
	log.SetFlags(0)
	shouldCheck := flag.Bool("check", false, "open the pages in Chromium, and search for the words of docs/README.md")
	flag.Parse()
	if flag.NArg() != 2 {
		log.Fatal("usage: site [-check] TREE FOLDER")
	}
	pages, err := build(flag.Arg(0), flag.Arg(1))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s has %d pages\n", filepath.Join(flag.Arg(1), "index.html"), len(pages.all))
	if *shouldCheck {
		if err := checkSearch(pages, flag.Arg(1)); err != nil {
			log.Fatal(err)
		}
	}
}

// build writes all pages of a tree, their pictures and the search index to a folder.
func build(tree, folder string) (*pages, error) {
	site, err := load(tree)
	if err != nil {
		return nil, err
	}
	if err := site.resolveLinks(tree); err != nil {
		return nil, err
	}
	layout, err := template.ParseFS(assets, "assets/page.html")
	if err != nil {
		return nil, err
	}
	if err := os.RemoveAll(folder); err != nil {
		return nil, err
	}
	for _, p := range site.all {
		body, err := site.render(p)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.source, err)
		}
		var text strings.Builder
		data := struct {
			*page
			Root   string // path from the page to the folder of the site
			Groups []group
			Body   template.HTML
		}{p, strings.Repeat("../", strings.Count(p.URL, "/")), site.groups(p), template.HTML(body)}
		if err := layout.Execute(&text, data); err != nil {
			return nil, err
		}
		if err := writeFile(folder, p.URL, text.String()); err != nil {
			return nil, err
		}
	}
	index, err := site.searchIndex()
	if err != nil {
		return nil, err
	}
	err = errors.Join(writeFile(folder, "search-index.js", "window.searchIndex = "+index+";\n"), site.copyPictures(tree, folder))
	for _, name := range []string{"site.css", "site.js"} {
		text, readErr := assets.ReadFile("assets/" + name)
		err = errors.Join(err, readErr, writeFile(folder, name, string(text)))
	}
	return site, err
}

// writeFile writes a file of the site, and makes the folders above it.
func writeFile(folder, name, text string) error {
	file := filepath.Join(folder, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, []byte(text), 0o644)
}

// copyPictures copies the pictures of the pages.
func (s *pages) copyPictures(tree, folder string) error {
	for picture := range s.pictures {
		text, err := os.ReadFile(filepath.Join(tree, filepath.FromSlash(picture)))
		if err != nil {
			return err
		}
		if err := writeFile(folder, siteName(picture), string(text)); err != nil {
			return err
		}
	}
	return nil
}

// siteName returns the path in the site of a file of the tree. The folder docs is the site's root.
func siteName(source string) string { return strings.TrimPrefix(path.Clean(source), "docs/") }
