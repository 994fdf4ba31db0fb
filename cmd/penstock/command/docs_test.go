package command

import (
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/cmd/penstock/internal/serve/settings"
	"github.com/penstock/penstock/internal/testing/redistest"
)

var update = flag.Bool("update", false, "write the settings into docs/configuration/server.md")

// settingGroups has the headings of docs/configuration/server.md, by the first setting below each.
// The settings on the page have the order of the help.
var settingGroups = map[string]string{
	"config":         "Policy and upstream",
	"store":          "The store",
	"api":            "Addresses for callers",
	"envoy-config":   "Envoy's rate limit service",
	"caller-token":   "Tokens and TLS for callers",
	"admin-listen":   "Admin address",
	"tls-cert":       "TLS for clients",
	"header-timeout": "Timeouts",
	"drain-delay":    "Shutdown",
	"max-header":     "Sizes and connections",
	"log-format":     "Log",
}

// TestSettingsPage: the page has every setting, with the bounds that settings.Load enforces.
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
	boundCount, groupCount := 0, 0
	for _, row := range settings.Table {
		if group := settingGroups[row.Name]; group != "" {
			groupCount++
			fmt.Fprintf(&want, "\n## %s\n", group)
		}
		section := settingText(row, boundsOf(t, row, &boundCount))
		want.WriteString(section)
		if !strings.Contains(have, section) && !*update {
			t.Errorf("%s lacks this section; -update writes it:\n%s", file, section)
		}
	}
	want.WriteString("\n")
	if groupCount != len(settingGroups) {
		t.Errorf("%d names of settingGroups are settings; want %d", groupCount, len(settingGroups))
	}
	if *update {
		if err := os.WriteFile(file, []byte(before+begin+want.String()+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if have != want.String() && !t.Failed() {
		t.Errorf("%s has other text between the settings, or another order; -update writes it", file)
	}
	t.Logf("counted: %d settings of the docs, with %d bounds", len(settings.Table), boundCount)
}

// settingText returns the page's section about one setting.
func settingText(row settings.Row, bounds string) string {
	facts := []string{"`--" + row.Name + "`", variables(row), values(row)}
	if bounds != "" {
		facts = append(facts, bounds)
	}
	if row.Default != "" {
		facts = append(facts, "default "+quoted(row.Default))
	}
	if row.IsNotInFile {
		facts = append(facts, "not in the file")
	}
	help := strings.ToUpper(row.Help[:1]) + row.Help[1:]
	return fmt.Sprintf("\n### %s\n\n%s\n\n%s.\n", row.Key(), strings.Join(facts, " · "), strings.TrimSuffix(help, "."))
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

// boundsOf finds the bounds of a number, a size or a duration, by trying values. It adds the number
// of bounds that it found to count.
func boundsOf(t *testing.T, row settings.Row, count *int) string {
	accepts := func(text string) bool {
		flags := map[string]string{"upstream": "http://localhost:1", row.Name: text}
		_, err := settings.Load(settings.Sources{Flags: flags})
		return err == nil
	}
	write := func(n int64) string { return strconv.FormatInt(n, 10) }
	var candidates []string // possible upper bounds, in ascending order
	switch row.Value {
	case "duration":
		write, candidates = func(n int64) string { return time.Duration(n).String() }, []string{"1m", "1h", "24h"}
	case "size":
		candidates = []string{"1MB", "1048576GB"}
	case "number":
		candidates = []string{"10000", "1000000"}
	default:
		return ""
	}
	for _, most := range candidates {
		if accepts(write(inUnits(most) + 1)) {
			continue
		}
		*count += 2 // a lower and an upper bound
		if !accepts(most) {
			break
		}
		if accepts(write(0)) {
			return "0 to " + most
		}
		if row.Value == "number" {
			return "1 to " + most
		}
		return "above 0, up to " + most
	}
	t.Errorf("the upper bound of %s is none of %v; add it to the candidates", row.Name, candidates)
	return ""
}

// inUnits converts a duration to nanoseconds, and a size to bytes. It does not change a number.
func inUnits(text string) int64 {
	if d, err := time.ParseDuration(text); err == nil {
		return int64(d)
	}
	n, unit := int64(0), ""
	fmt.Sscanf(text, "%d%s", &n, &unit)
	return n * map[string]int64{"": 1, "MB": 1 << 20, "GB": 1 << 30}[unit]
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
