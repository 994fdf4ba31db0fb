package redisclient

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock"
)

const docs = "../../docs"

// Every URL of a store in the docs can be parsed.
func TestURLsOfDocsAreValid(t *testing.T) {
	url := regexp.MustCompile("[`' ]((?:rediss?|valkeys?|unix)(?:\\+[a-z]+)?://[^`' \\n]+)")
	n := 0
	err := filepath.WalkDir(docs, func(name string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(name) != ".md" {
			return err
		}
		page, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		for _, m := range url.FindAllStringSubmatch(string(page), -1) {
			text := strings.TrimRight(m[1], ",.;")
			if strings.ContainsAny(text, "…{") { // a pattern with placeholders, or JSON
				continue
			}
			n++
			if err := CheckURL(text); err != nil {
				t.Errorf("%s: %s: %v; want a valid URL", name, text, err)
			}
		}
		return nil
	})
	if err != nil || n < 20 {
		t.Errorf("found %d URLs in the docs, %v; want at least 20 and no error", n, err)
	}
	t.Logf("counted: %d URLs of the docs", n)
}

func TestDocsListAllOptionsOfURLs(t *testing.T) {
	page, err := os.ReadFile(docs + "/howto/connect-redis.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(page), "| option | takes | default |\n")
	table, _, _ = strings.Cut(table, "\n\n")
	var listed []string
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\|").FindAllStringSubmatch(table, -1) {
		listed = append(listed, m[1])
	}
	if !slices.Equal(listed, urlOptions) {
		t.Errorf("docs/howto/connect-redis.md lists %q; want %q", listed, urlOptions)
	}
}

// CheckURL checks a URL without reading the files that the URL names.
func TestURLsAreCheckedWithoutTheirFiles(t *testing.T) {
	t.Parallel()
	for _, url := range []string{
		"rediss://h?ca=/no/file&cert=/no/cert&key=/no/key", "redis://h?password_file=/no/file", "redis+cluster://h1,h2", "unix:///run/redis.sock",
	} {
		if err := CheckURL(url); err != nil {
			t.Errorf("%s: %v; want a valid URL", url, err)
		}
	}
	for _, url := range []string{
		"", "h", "http://h", "redis://h/-1", "redis://h1,h2", "rediss://h?cert=/no/cert", "redis://h?ca=/no/file", "redis://h?dial_timeout=1",
	} {
		_, want := ParseURL(url)
		if err := CheckURL(url); !errors.Is(err, penstock.ErrInvalid) || err.Error() != fmt.Sprint(want) {
			t.Errorf("%s: %v; want %v", url, err, want)
		}
	}
}
