package htmlreport

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"strings"
	"testing"

	"golang.org/x/net/html"
)

// TestHostileTextsStayText: texts from logs make no elements. The policy of the page allows exactly
// its own scripts and styles, and the page names nothing to load.
func TestHostileTextsStayText(t *testing.T) {
	const hostile = `</script></style><script>x</script><img src=x onerror=x>"'` + "`${x}\u202e"
	const shown = `</script></style><script>x</script><img src=x onerror=x>"'` + "`${x}\ufffd"
	var text bytes.Buffer
	err := Write(&text, &Page{Title: hostile, Notes: "warning: " + hostile, Sections: []Section{{
		Title: hostile, Note: hostile, Columns: []string{hostile}, Rows: [][]string{{hostile}}, Text: hostile,
		Chart: &Chart{Unit: "requests", X: []float64{1, 2}, Lines: []Line{{Label: hostile, Values: []float64{1, 2}}}},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	root, err := html.Parse(&text)
	if err != nil {
		t.Fatal(err)
	}
	elements, texts, policy := make(map[string]int), 0, ""
	var hashes []string
	for n := range root.Descendants() {
		if n.Type == html.TextNode && strings.Contains(n.Data, shown) {
			texts++
		}
		if n.Type != html.ElementNode {
			continue
		}
		elements[n.Data]++
		if n.Data == "script" || n.Data == "style" {
			sum := sha256.Sum256([]byte(n.FirstChild.Data))
			hashes = append(hashes, "'sha256-"+base64.StdEncoding.EncodeToString(sum[:])+"'")
		}
		for _, a := range n.Attr {
			if strings.HasPrefix(a.Key, "on") || a.Key == "src" || a.Key == "href" || a.Key == "style" {
				t.Errorf("the element %s has the attribute %s", n.Data, a.Key)
			}
			if a.Key == "content" && strings.HasPrefix(a.Val, "default-src") {
				policy = a.Val
			}
		}
	}
	if elements["script"] != 2 || elements["style"] != 1 || elements["img"] != 0 || texts != 9 {
		t.Errorf("the elements are %v, and %d texts are shown as they are; want 2 scripts, a style and 9 texts", elements, texts)
	}
	if want := "default-src 'none'; script-src " + hashes[1] + " " + hashes[2] + "; style-src " + hashes[0] + "; base-uri 'none'; form-action 'none'"; policy != want {
		t.Errorf("the Content-Security-Policy is\n%s\nwant\n%s", policy, want)
	}
}
