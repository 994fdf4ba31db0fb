package main

import (
	"html"
	"regexp"
	"strings"

	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/renderer"
	"github.com/yuin/goldmark/util"
)

// A codeRenderer writes code blocks. It marks comments and the keys of YAML, so that they get their
// own colors.
type codeRenderer struct{}

func (codeRenderer) RegisterFuncs(r renderer.NodeRendererFuncRegisterer) {
	r.Register(ast.KindFencedCodeBlock, func(w util.BufWriter, source []byte, node ast.Node, entering bool) (ast.WalkStatus, error) {
		if !entering {
			return ast.WalkContinue, nil
		}
		block := node.(*ast.FencedCodeBlock)
		language := string(block.Language(source))
		var text strings.Builder
		var lines []string
		for i := range block.Lines().Len() {
			line := block.Lines().At(i)
			lines = append(lines, string(line.Value(source)))
		}
		for _, line := range dedent(lines) {
			text.WriteString(color(line, language))
		}
		_, err := w.WriteString("<pre><code>" + text.String() + "</code></pre>\n")
		return ast.WalkSkipChildren, err
	})
}

var (
	hashComment  = regexp.MustCompile(`^(.*?)((?:^|\s)#.*)$`)
	slashComment = regexp.MustCompile(`^(.*?)((?:^|\s)//.*)$`)
	yamlKey      = regexp.MustCompile(`(^|[\s{,\[])([A-Za-z_][\w.-]*)(:)(\s|$)`)
)

// dedent removes the tabs with which all lines begin: quoted code may be a part of a function.
func dedent(lines []string) []string {
	for len(lines) > 0 {
		for _, line := range lines {
			if line[0] != '\t' && strings.TrimSpace(line) != "" {
				return lines
			}
		}
		shorter := make([]string, len(lines))
		for i, line := range lines {
			shorter[i] = strings.TrimPrefix(line, "\t")
		}
		if strings.TrimSpace(strings.Join(lines, "")) == "" {
			return lines
		}
		lines = shorter
	}
	return lines
}

// color escapes a line of code, and marks its comment and keys.
func color(line, language string) string {
	line = strings.TrimSuffix(line, "\n")
	code, comment := line, ""
	pattern := map[string]*regexp.Regexp{"yaml": hashComment, "sh": hashComment, "console": hashComment, "conf": hashComment, "nginx": hashComment, "go": slashComment}[language]
	if pattern != nil {
		if m := pattern.FindStringSubmatch(line); m != nil {
			code, comment = m[1], m[2]
		}
	}
	code = html.EscapeString(code)
	if language == "yaml" {
		code = yamlKey.ReplaceAllString(code, `$1<span class="k">$2</span>$3$4`)
	}
	if comment != "" {
		comment = `<span class="c">` + html.EscapeString(comment) + `</span>`
	}
	return code + comment + "\n"
}
