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
			text.WriteString(colorLine(line, language))
		}
		_, err := w.WriteString("<pre><code>" + text.String() + "</code></pre>\n")
		return ast.WalkSkipChildren, err
	})
}

var (
	hashComment  = regexp.MustCompile(`^(.*?)((?:^|\s)#.*)$`) // the groups are the code and the comment
	slashComment = regexp.MustCompile(`^(.*?)((?:^|\s)//.*)$`)
	yamlKey      = regexp.MustCompile(`(^|[\s{,\[])([A-Za-z_][\w.-]*)(:)(\s|$)`)

	commentPatterns = map[string]*regexp.Regexp{ // by language
		"yaml": hashComment, "sh": hashComment, "console": hashComment, "conf": hashComment, "nginx": hashComment,
		"go": slashComment,
	}
)

// dedent removes the tabs with which all lines begin. Quoted code that is a part of a function has
// such tabs.
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

// colorLine escapes a line of code. It puts the comment into an element of class c, and the keys of
// YAML into elements of class k.
func colorLine(line, language string) string {
	line = strings.TrimSuffix(line, "\n")
	code, comment := line, ""
	if pattern := commentPatterns[language]; pattern != nil {
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
