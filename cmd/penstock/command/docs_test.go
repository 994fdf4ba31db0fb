package command

import (
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock/cmd/penstock/internal/serve/settings"
	"github.com/penstock/penstock/internal/testing/redistest"
)

var update = flag.Bool("update", false, "write the settings into docs/configuration/server.md")

// TestSettingsPage: the page has every setting, in the order of the help.
func TestSettingsPage(t *testing.T) {
	const file = "../../../docs/configuration/server.md"
	const begin, end = "-update -->\n", "<!-- end of settings -->"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, hasBegin := strings.Cut(string(text), begin)
	have, after, hasEnd := strings.Cut(rest, end)
	if !hasBegin || !hasEnd {
		t.Fatalf("%s has no part between %q and %q", file, begin, end)
	}
	var want strings.Builder
	for _, row := range settings.Table {
		if row.Group != "" {
			fmt.Fprintf(&want, "\n## %s\n", row.Group)
		}
		section := settingText(row)
		want.WriteString(section)
		if !strings.Contains(have, section) && !*update {
			t.Errorf("%s lacks this section; -update writes it:\n%s", file, section)
		}
	}
	want.WriteString("\n")
	if *update {
		if err := os.WriteFile(file, []byte(before+begin+want.String()+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if have != want.String() && !t.Failed() {
		t.Errorf("%s has other text between the settings, or another order; -update writes it", file)
	}
	t.Logf("counted: %d settings of the docs", len(settings.Table))
}

// settingText returns the page's section about one setting.
func settingText(row settings.Row) string {
	facts := []string{"`--" + row.Name + "`", variables(row), values(row)}
	if row.Bounds != "" {
		facts = append(facts, row.Bounds)
	}
	if row.Default != "" {
		facts = append(facts, "default "+quoted(row.Default))
	}
	if row.IsNotInFile {
		facts = append(facts, "not in the file")
	}
	return fmt.Sprintf("\n### %s\n\n%s\n\n%s\n", row.Key(), strings.Join(facts, " · "), row.Sentence())
}

// variables lists the environment variables of a setting.
func variables(row settings.Row) string {
	list := []string{quoted(row.Env())}
	if row.IsSecret {
		list = append(list, quoted(row.Env()+"_FILE"))
	}
	for _, alias := range row.Aliases {
		list = append(list, quoted(alias.Name))
		if row.IsSecret && alias.Read == nil {
			list = append(list, quoted(alias.Name+"_FILE"))
		}
	}
	return strings.Join(list, ", ")
}

// values describes the values that a setting accepts.
func values(row settings.Row) string {
	if row.Value == "" {
		return "true, false"
	}
	return strings.ReplaceAll(row.Value, "|", ", ")
}

func quoted(text string) string {
	if text == "" {
		return ""
	}
	return "`" + text + "`"
}

// Each line of a code block in docs that runs penstock is a valid command line: the command and its
// flags exist, and the number of arguments is right.
func TestCommandLinesOfDocsAreValid(t *testing.T) {
	lines := 0
	for _, dir := range []string{"../../../docs", "../../../README.md"} {
		err := filepath.WalkDir(dir, func(name string, _ fs.DirEntry, err error) error {
			if err != nil || filepath.Ext(name) != ".md" {
				return err
			}
			text, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			inBlock, isShell := false, false
			for line := range strings.Lines(string(text)) {
				if language, isFence := strings.CutPrefix(strings.TrimSpace(line), "```"); isFence {
					inBlock = !inBlock
					isShell = inBlock && slices.Contains([]string{"", "sh", "console"}, language)
					continue
				}
				args := words(strings.TrimPrefix(line, "$ "))
				if !isShell || len(args) < 2 || args[0] != "penstock" || args[1][0] == '(' {
					continue
				}
				lines++
				found, rest, err := New().Find(args[1:])
				if err == nil {
					err = found.ParseFlags(rest)
				}
				if err == nil {
					err = found.ValidateArgs(found.Flags().Args())
				}
				if err != nil {
					t.Errorf("%s: the command %s: %v; want no error", name, strings.TrimSpace(line), err)
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if lines < 40 {
		t.Errorf("%d command lines were found; want at least 40", lines)
	}
	t.Logf("counted: %d command lines of the docs", lines)
}

// words splits the first command of a shell's line, up to "&", "|", ">", "2>" or "#".
func words(line string) (list []string) {
	for _, m := range regexp.MustCompile(`'([^']*)'|"([^"]*)"|[^\s'"]+`).FindAllStringSubmatch(line, -1) {
		switch word := m[0]; {
		case strings.ContainsAny(word[:1], "&|>#") || strings.HasPrefix(word, "2>"):
			return list
		case m[1] != "" || m[2] != "":
			list = append(list, m[1]+m[2])
		default:
			list = append(list, word)
		}
	}
	return list
}

// The docs recommend deploy/redis/redis.conf. A server accepts it, and doctor finds no problem.
func TestRecommendedRedisIsFit(t *testing.T) {
	text, err := os.ReadFile("../../../deploy/redis/redis.conf")
	if err != nil {
		t.Fatal(err)
	}
	var args []string
	for line := range strings.Lines(string(text)) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), " ")
		if ok && !strings.HasPrefix(name, "#") {
			args = append(args, "--"+name, strings.Trim(value, `"`))
		}
	}
	if len(args) < 10 { // a name and a value for each setting
		t.Fatalf("redis.conf has the settings %q; want at least 5", args)
	}
	server := redistest.Start(t, args...)
	code, out, errors := command("doctor", "--store-timeout", "1m", "--store", server.URL())
	for _, check := range []string{"eviction", "memory", "persistence"} {
		if !regexp.MustCompile(`(?m)^ok +` + check + ` `).MatchString(out) {
			t.Errorf("the check %s of doctor is not ok (exit status %d):\n%s%s", check, code, out, errors)
		}
	}
}
