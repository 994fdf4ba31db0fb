package policyfile

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/testing/effort"
	"github.com/penstock/penstock/policy"
)

var rewrite = flag.Bool("rewrite", false, "write the current messages into testdata")

// A badCase is one configuration of testdata/bad with its error messages. A case has the form
//
//	==== the name of the case
//	:env NAME=value
//	the text of the file; with :escaped, it has escapes such as \t and \xff
//	----
//	the messages, one per line
type badCase struct {
	file     string // in testdata/bad
	line     int
	name     string
	header   []string // the lines that begin with a colon
	lines    []string // of the file
	messages []string
}

func readBadCases(t testing.TB, file string) (cases []*badCase) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var c *badCase
	isInMessages := false
	for i, line := range strings.Split(strings.TrimSuffix(string(text), "\n"), "\n") {
		name, isStart := strings.CutPrefix(line, "==== ")
		switch {
		case isStart:
			c, isInMessages = &badCase{file: file, line: i + 1, name: name}, false
			cases = append(cases, c)
		case c == nil && line != "":
			t.Fatalf("%s:%d: %q is before the first case", file, i+1, line)
		case line == "----":
			isInMessages = true
		case isInMessages && line != "":
			c.messages = append(c.messages, line)
		case isInMessages || c == nil: // an empty line between cases
		case strings.HasPrefix(line, ":") && c.lines == nil:
			c.header = append(c.header, line)
		default:
			c.lines = append(c.lines, line)
		}
	}
	return cases
}

func writeBadCases(t *testing.T, file string, cases []*badCase) {
	t.Helper()
	var s strings.Builder
	for i, c := range cases {
		if i > 0 {
			s.WriteByte('\n')
		}
		fmt.Fprintf(&s, "==== %s\n", c.name)
		for _, line := range slices.Concat(c.header, c.lines, []string{"----"}, c.messages) {
			s.WriteString(line + "\n")
		}
	}
	if err := os.WriteFile(file, []byte(s.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}

// text returns the text of the file, with its escapes replaced.
func (c *badCase) text(t testing.TB) string {
	t.Helper()
	text := strings.Join(c.lines, "\n") + "\n"
	if !slices.Contains(c.header, ":escaped") {
		return text
	}
	text, err := strconv.Unquote(`"` + strings.ReplaceAll(strings.ReplaceAll(text, `"`, `\"`), "\n", `\n`) + `"`)
	if err != nil {
		t.Fatalf("%s:%d: the escapes are malformed: %v", c.file, c.line, err)
	}
	return text
}

// env returns the value of a variable that the case sets.
func (c *badCase) env(name string) (string, bool) {
	for _, line := range c.header {
		if value, ok := strings.CutPrefix(line, ":env "+name+"="); ok {
			return value, true
		}
	}
	return "", false
}

// mistakesOf reads and compiles a policy as Load does. It returns the errors of reading and of
// compiling.
func mistakesOf(name, text string, env func(string) (string, bool)) error {
	config, _ := parse(name, []byte(text), env, allSections)
	p, err := config.compile()
	if err == nil {
		p.Close()
	}
	return err
}

func TestCompileReturnsTheErrorOfCheckUnlessThereAreMistakes(t *testing.T) {
	checkErr := errors.New("the rules cannot be enforced")
	o := Options{Check: func(*policy.Rules) error { return checkErr }}
	compile := func(text string) error {
		config, _ := parse("p.yaml", []byte(text), nil, o)
		_, err := config.compile()
		return err
	}
	if err := compile("rules: [{name: a, per: ip, limits: [{rate: 1/s}]}]\n"); err != checkErr {
		t.Errorf("compile of a valid policy returns the error %v; want that of Check", err)
	}
	var mistakes Errors
	if err := compile("rules: [{name: a, per: ip, limits: [{rate: x}]}]\n"); !errors.As(err, &mistakes) || errors.Is(err, checkErr) {
		t.Errorf("compile of a policy with a mistake returns the error %v; want Errors", err)
	}
}

// Every error has the place, the mistake, and how to fix it.
func TestErrorsOfBadPoliciesHavePlaceMistakeAndFix(t *testing.T) {
	effort.SkipUnderRace(t)
	files, err := filepath.Glob("testdata/bad/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("testdata/bad is empty:", err)
	}
	for i := range files {
		files[i], _ = filepath.Abs(files[i])
	}
	t.Chdir("testdata/bad/files") // the folder of the files that policies name
	rejected := 0
	placeOf := make(map[string]string) // by the name of a case
	for _, file := range files {
		cases := readBadCases(t, file)
		for _, c := range cases {
			at := fmt.Sprintf("testdata/bad/%s:%d: %s", filepath.Base(file), c.line, c.name)
			if other, isTwice := placeOf[c.name]; isTwice {
				t.Errorf("%s: another case has the same name: %s", at, other)
			}
			placeOf[c.name] = at
			text := c.text(t)
			err := mistakesOf("policy.yaml", text, c.env)
			if err == nil {
				t.Errorf("%s: the policy compiles; want an error", at)
				continue
			}
			rejected++
			messages := strings.Split(err.Error(), "\n")
			if *rewrite {
				c.messages = messages
			} else if !slices.Equal(messages, c.messages) {
				t.Errorf("%s: the messages are\n\t%s\nwant\n\t%s\n(go test ./policy/policyfile -run Bad -rewrite writes the current messages)",
					at, strings.Join(messages, "\n\t"), strings.Join(c.messages, "\n\t"))
			}
			for _, wrong := range formErrors(text, err) {
				t.Errorf("%s: %s", at, wrong)
			}
		}
		if *rewrite {
			writeBadCases(t, file, cases)
		}
	}
	t.Logf("counted: %d bad configurations", rejected)
}

const longestMessage = 400 // bytes

// formErrors returns what is wrong with the form of the messages.
func formErrors(text string, err error) (wrong []string) {
	var errs Errors
	if !errors.As(err, &errs) || !errors.Is(err, penstock.ErrInvalid) {
		return []string{fmt.Sprintf("the error is a %T; want Errors that wrap ErrInvalid", err)}
	}
	lines := strings.Split(text, "\n")
	for i, e := range errs {
		switch {
		case e.Line < 1 || e.Line > len(lines) || e.Column < 1 || e.Column > utf8.RuneCountInString(lines[e.Line-1])+1:
			wrong = append(wrong, fmt.Sprintf("%v: there is no such place in the file", e))
		case !strings.Contains(e.Message, ";"):
			wrong = append(wrong, fmt.Sprintf("%v: the error has no text on how to fix it", e))
		case strings.HasSuffix(e.Message, ".") || strings.Contains(e.Message, "%!") || strings.ContainsAny(e.Message, "\r\n\t"):
			wrong = append(wrong, fmt.Sprintf("%q: the message is not one line, ends with a period, or has a wrong verb of fmt", e.Message))
		case len(e.Message) > longestMessage:
			wrong = append(wrong, fmt.Sprintf("%v: the message has %d bytes; want at most %d", e, len(e.Message), longestMessage))
		case i > 0 && (e.Line < errs[i-1].Line || e.Line == errs[i-1].Line && e.Column < errs[i-1].Column):
			wrong = append(wrong, fmt.Sprintf("%v: this error comes after an error at a later place", e))
		}
	}
	return wrong
}

// The last line of these files has no line break.
func TestSecondDocumentsWithoutALineBreakAreErrors(t *testing.T) {
	for _, end := range []string{"---", "...", "--- ", "---\nrules: []", "----"} {
		_, err := parse("policy.yaml", []byte("rules: []\n"+end), nil, Options{})
		wantsError := end != "..." // "..." only ends the first document
		if isError := err != nil && !strings.Contains(err.Error(), "panic"); isError != wantsError {
			t.Errorf("%q: the error is %v; want an error: %t", end, err, wantsError)
		}
	}
}

// A file that is too large, is nested too deeply or refers to itself is an error within a minute.
func TestHugePoliciesAreErrors(t *testing.T) {
	effort.SkipUnderRace(t)
	const rule = "rules: [{name: a, per: global, limits: [{rate: 1/s}]}]\n"
	var bomb strings.Builder // each value has ten aliases of the previous one
	bomb.WriteString("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n")
	for i := range 9 {
		fmt.Fprintf(&bomb, "a%d: &a%d [%s]\n", i+1, i+1, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d, ", i), 10), ", "))
	}
	var limits, always, manyRules strings.Builder
	for i := range 65 {
		fmt.Fprintf(&limits, "      - {name: l%d, rate: 1/s}\n", i)
		fmt.Fprintf(&always, "  - {name: r%d, always: true, per: global, limits: [{rate: 1/s}]}\n", i)
	}
	for i := range maxRules + 1 {
		fmt.Fprintf(&manyRules, "- {name: r%d, match: {path: /%d}, unlimited: true}\n", i, i)
	}
	var wrongRules strings.Builder
	for i := range 500 {
		fmt.Fprintf(&wrongRules, "- {name: r%d, match: {path: /%d}, per: nothing%d, limits: [{rate: 1/s}]}\n", i, i, i)
	}
	long := strings.Repeat("x", 900_000)
	var doubled strings.Builder // each identity has twice as many parts as the previous one
	doubled.WriteString("identities:\n  i0: {key: header X}\n")
	for i := range 40 {
		fmt.Fprintf(&doubled, "  i%d: {all_of: [i%d, i%d]}\n", i+1, i, i)
	}
	paths := "[" + strings.TrimSuffix(strings.Repeat("/a, ", 400), ", ") + "]"
	rows := []struct{ name, text, want string }{
		{name: "identities whose parts double", text: doubled.String() + rule,
			want: "policy.yaml:8:7: the identity has 64 parts, with those of the identities that it names; the most is 32"},
		{name: "400 paths at 400 hosts", text: "rules: [{name: a, match: {path: " + paths + ", host: " + strings.ReplaceAll(paths, "/", "") + "}, unlimited: true}]",
			want: "the rules have more than 100000 combinations of path and host; write patterns instead"},
		{name: "a file of more than 1 MiB", text: rule + strings.Repeat("# long\n", 1<<20/7),
			want: "policy.yaml:1:1: the file has 1048627 bytes; the most is 1048576. Put long lists into separate files: {file: NAME}"},
		{name: "an alias bomb in an unused field", text: bomb.String() + rule, want: "policy.yaml:5:45: the file has more than 100000 values, counted again at each alias; "},
		{name: "an alias bomb in a list of values", text: "deny: &d [" + strings.Repeat("{header X: [a, b, c, d, e, f, g, h, i, j]}, ", 200) + "]\ntiers:\n" +
			func() (s string) {
				for i := range 100 {
					s += fmt.Sprintf("  t%d: *d\n", i)
				}
				return s
			}() + rule, want: "the file has more than 100000 values, counted again at each alias; put long lists into files of their own"},
		{name: "lists in lists", text: "rules: " + strings.Repeat("[", 5000) + strings.Repeat("]", 5000), want: "policy.yaml:1:9: a list does not belong here; write {name: "},
		{name: "identities in identities", text: "identities:\n  a: " + strings.Repeat("{first_of: [", 20) + "ip" + strings.Repeat("]}", 20) + "\n" + rule,
			want: "the file is nested more than 32 levels deep; no policy needs that"},
		{name: "mappings in mappings", text: strings.Repeat("{a: ", 9000) + "1" + strings.Repeat("}", 9000), want: "policy.yaml:1:2: there is no field \"a\" here; "},
		{name: "lists in lists that the YAML parser rejects", text: "rules: " + strings.Repeat("[", 50_000) + strings.Repeat("]", 50_000), want: "depth"},
		{name: "65 limits in a rule", text: "rules:\n  - name: a\n    per: global\n    limits:\n" + limits.String(),
			want: "a request could be charged to 65 limits, because rules with always: true apply together; the most is 64; remove rules or limits"},
		{name: "65 rules that always apply", text: "rules:\n" + always.String(),
			want: "policy.yaml:2:3: a request could be charged to 65 limits, because rules with always: true apply together; the most is 64; remove rules or limits"},
		{name: "500 wrong rules", text: "rules:\n" + wrongRules.String(), want: " more messages are left out, from this position on; correct the others first"},
		{name: "a long path that several rules match", text: "rules:\n- {name: a, match: {path: /" + long[:400_000] + "}, unlimited: true}\n- {name: b, match: {path: /" + long[:400_000] + "}, unlimited: true}\n",
			want: "matches equally well"},
		{name: "an identity with a long name and an empty list", text: "identities: {" + long + ": {first_of: []}}\n" + rule, want: "policy.yaml:1:"},
		{name: "10,001 rules", text: "rules:\n" + manyRules.String(), want: "policy.yaml:2:1: there are 10001 rules; the most is 10000"},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			done := make(chan error, 1)
			go func() { done <- mistakesOf("policy.yaml", row.text, nil) }()
			select {
			case err := <-done:
				if err == nil || !strings.Contains(err.Error(), row.want) {
					t.Fatalf("the error is %.2000v\nwant %q", err, row.want)
				}
				for _, wrong := range formErrors(row.text, err) {
					t.Error(wrong)
				}
				if n := strings.Count(err.Error(), "\n"); n > 200 {
					t.Errorf("%d mistakes are reported; want at most 200", n)
				}
				if n := len(err.Error()); n > 300_000 {
					t.Errorf("the error has %d bytes; want at most 300000", n)
				}
			case <-time.After(time.Minute):
				t.Fatal("the policy takes more than a minute to compile")
			}
		})
	}
	t.Logf("counted: %d huge policies", len(rows))
}

// A reload logs warnings and hints. So neither their number nor their length may grow with the
// file.
func TestWarningsAndHintsAreBounded(t *testing.T) {
	t.Parallel()
	var many strings.Builder
	for i := range 300 {
		fmt.Fprintf(&many, "- {name: r%d, match: {path: /a%d}, per: {key: header X-%d}, limits: [{rate: 1/s, on_status: 401}]}\n", i, i, i)
	}
	for name, text := range map[string]string{
		"many": many.String(),
		"long": "- {name: a, match: {path: /" + strings.Repeat("x", 100_000) + "}, per: ip, limits: [{rate: 1/s, on_status: 401}]}\n",
	} {
		config, err := parse("policy.yaml", []byte("rules:\n"+text), nil, Options{})
		if err != nil {
			t.Fatalf("%s: the error is %v; want none", name, err)
		}
		p, err := config.compile()
		if err != nil {
			t.Fatalf("%s: the error is %v; want none", name, err)
		}
		defer p.Close()
		all := slices.Concat(p.Warnings, p.Hints)
		if len(all) == 0 || len(all) > 2*maxErrors {
			t.Errorf("%s: there are %d warnings and hints; want 1 to %d", name, len(all), 2*maxErrors)
		}
		for _, e := range all {
			if len(e.Message) > 2*maxMessageBytes {
				t.Errorf("%s: a warning or hint has %d bytes; want at most %d: %.200s", name, len(e.Message), 2*maxMessageBytes, e.Message)
			}
		}
	}
}
