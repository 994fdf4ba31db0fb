package policyfile

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/penstock/penstock/internal/boundedfile"
	"github.com/penstock/penstock/internal/syntax"
	"github.com/penstock/penstock/internal/wording"
	"github.com/penstock/penstock/policy"
)

func (c *compiler) compileTiers() {
	tiers := c.config.Tiers
	for i := range tiers {
		e := &tiers[i]
		isLast := i == len(tiers)-1
		t := policy.Tier{Name: e.Name, IsDefault: e.Value.Otherwise}
		switch {
		case !syntax.IsKind(e.Name):
			c.fail(&e.Name, "%q cannot be the name of a tier; write 1 to 20 of a-z, 0-9 and -, beginning with a letter", wording.Clip(e.Name))
		case e.Name == "default":
			c.fail(&e.Name, "a tier cannot be called default; write free: default for the tier of all other clients")
		case t.IsDefault && !isLast:
			c.fail(&e.Value, "tier %s takes all clients, so no later tier is ever used; move it to the end", e.Name)
		case !t.IsDefault && isLast:
			c.fail(&e.Value, "the last tier, %s, has conditions, so some clients would have no tier; add one for all other clients, as in free: default", e.Name)
		case !t.IsDefault && len(e.Value.Any) == 0:
			c.fail(&e.Value, "tier %s has no condition, so no client would have it; add one, as in {header X-Plan: premium}", e.Name)
		}
		if !t.IsDefault {
			t.AnyOf = c.compileConditions(&e.Value, "tier")
			c.warnChosen(&e.Value, "choose tier "+e.Name)
		}
		c.spec.Tiers = append(c.spec.Tiers, t)
	}
}

// warnChosen warns about conditions that clients can meet as they like, because the only clause is
// a value that they write. The parameter power is what a client gets by them, as in "choose tier
// a".
func (c *compiler) warnChosen(config *conditionsConfig, power string) {
	for _, clauses := range config.Any {
		for i := range clauses {
			clause := &clauses[i]
			word, _, _ := strings.Cut(clause.Source, " ")
			isWrittenByClient := word == "header" || word == "cookie" || word == "query"
			if len(clauses) == 1 && clause.Values.File == "" && isWrittenByClient {
				c.warn(&clause.Source, "clients write %s themselves, so they can %s, unless a proxy in front sets it; use a claim, or a list of keys in a file", clause.Source, power)
			}
		}
	}
}

// compileConditions compiles the conditions of the given field: "tier", "allow" or "deny".
func (c *compiler) compileConditions(config *conditionsConfig, field string) (list []policy.Condition) {
	if config.Otherwise {
		c.fail(config, "%s cannot be default; name a source with its values, as in [{ip: 10.0.0.0/8}]", field)
	}
	for i := range config.Any {
		list = append(list, c.compileCondition(config.Any[i], field))
	}
	return list
}

// compileCondition compiles a condition of the given field: "match", "tier", "allow" or "deny".
func (c *compiler) compileCondition(clauses conditionConfig, field string) (when policy.Condition) {
	for i := range clauses {
		clause := &clauses[i]
		var otherWords []string
		if field == "match" {
			otherWords = []string{"path"}
		}
		source, ok := c.compileSource(&clause.Source, clause.Source, otherWords...)
		if !ok {
			continue
		}
		switch {
		case field == "tier" && source.Needs(policy.KindTier):
			c.fail(&clause.Source, "the condition of a tier cannot depend on the tier; use a claim, a header or a list")
			continue
		case field == "match" && source.Needs(policy.KindSegment):
			c.fail(&clause.Source, "a match cannot test a named segment; write the segment itself into the path")
		case source.Needs(policy.KindSegment):
			c.fail(&clause.Source, "%s is evaluated before a rule matches, so it cannot use a segment of a path; use a claim, a header or a list", field)
		}
		when = append(when, c.compileTest(source, &clause.Values))
	}
	return when
}

func (c *compiler) tierNames() (names []string) {
	for _, t := range c.spec.Tiers {
		names = append(names, t.Name)
	}
	return names
}

func (c *compiler) compileTest(source policy.Source, values *valuesConfig) policy.Test {
	t := policy.Test{Source: source}
	// add adds a value that was written at p. For a value from a file of values, the parameter where
	// is its place in that file, for messages. add returns false if the value is wrong.
	add := func(p any, where, text string) bool {
		if text == "*" {
			t.Any = true
			return true
		}
		switch id := source.Identity; {
		case source.Kind == policy.KindIdentity && id != invalidIdentity && !id.CanHaveKey(text):
			value := wording.Clip(text)
			if strings.ContainsAny(text, ":,") { // the text may be a whole key, with a wrong kind
				value = "abc"
			}
			c.fail(p, "%s%q is not a key of this identity; write the whole key, which begins with its kind, as in %s", where, wording.Clip(text), id.ExampleKey(value))
			return false
		case source.Kind == policy.KindTier && !slices.Contains(c.tierNames(), text):
			c.fail(p, "%sthere is no tier %q; %s", where, wording.Clip(text), suggestOf(text, c.tierNames()))
			return false
		}
		if err := t.Add(text); err != nil {
			c.fail(p, "%s%v", where, err)
			return false
		}
		return true
	}
	for i := range values.Is {
		add(&values.Is[i], "", values.Is[i])
	}
	odd := remarkKind{report: c.warn}
	addLine := func(p any, where, text string) bool {
		isAdded := add(p, where, text)
		if why := oddity(source, text); isAdded && why != "" {
			odd.note(p, "%sthe value %s, so it probably matches no client; write one value per line, as clients send it", where, why)
		}
		return isAdded
	}
	defer odd.end()
	if t.File = values.File; t.File != "" && c.readLines(&values.File, values.File, addLine) && t.IsEmpty() {
		c.warn(&values.File, "%s has no values, so it matches no client; add values, or remove the line", wording.Clip(values.File))
	}
	return t
}

// oddity returns why a line of a file is probably not the value that a client sends, such as "is in
// quotes". It returns "" for other lines.
func oddity(source policy.Source, text string) string {
	isInvisible := func(r rune) bool { return !unicode.IsPrint(r) }
	if at := strings.IndexFunc(text, isInvisible); at >= 0 {
		r, _ := utf8.DecodeRuneInString(text[at:])
		return fmt.Sprintf("has the invisible character %U", r)
	}
	first, last := text[0], text[len(text)-1]
	if isQuote := first == '"' || first == '\''; isQuote && first == last && len(text) > 1 {
		return "is in quotes"
	}
	// A comma before a space is usual in text, such as User-Agent. Keys of all_of have commas.
	for i := range len(text) {
		isLast := i == len(text)-1
		if text[i] == ',' && source.Kind != policy.KindIdentity && (isLast || text[i+1] != ' ') {
			return "has a comma"
		}
	}
	return ""
}

// Bounds of files with values.
const (
	maxListFiles      = 1000      // files; a file that is named twice counts twice, here and in the next two bounds
	maxListBytes      = 64 << 20  // bytes of all files together
	maxListLines      = 1_000_000 // lines of all files together
	maxListValueBytes = 16 << 10  // bytes of one value
	maxBadLines       = 10        // bad lines of one file that are reported one by one
)

// readLines reads a file with one value per line, and calls add with each value. # begins a
// comment. readLines returns false if the file has a mistake, or if add returned false.
func (c *compiler) readLines(p any, name string, add func(p any, where, text string) bool) bool {
	if c.listFileCount++; c.listFileCount > maxListFiles {
		if c.listFileCount == maxListFiles+1 {
			c.fail(p, "there are more than %d files of values (a file that is named twice counts twice); use fewer", maxListFiles)
		}
		return false
	}
	path := boundedfile.Join(filepath.Dir(c.file), name)
	text, err := boundedfile.Read(path, int64(maxListBytes-c.listByteCount))
	if errors.Is(err, boundedfile.ErrTooLong) {
		c.fail(p, "with %s, the files of values have more than %d bytes (a file that is named twice counts twice); use fewer", name, maxListBytes)
		return false
	}
	if err != nil {
		c.fail(p, "the file cannot be read: %v; a relative name is relative to the policy's folder", err)
		return false
	}
	c.files = append(c.files, path)
	c.digest.Write(text)
	c.listByteCount += len(text)
	if !utf8.Valid(text) || bytes.IndexByte(text, 0) >= 0 { // UTF-16 has zero bytes
		c.fail(p, "%s is not text in UTF-8; convert it, for example by iconv -f UTF-16 -t UTF-8", name)
		return false
	}
	lineNumber, badLines := 0, 0
	for line := range strings.Lines(strings.TrimPrefix(string(text), "\ufeff")) {
		lineNumber++
		if c.listLineCount++; c.listLineCount > maxListLines {
			c.fail(p, "the files of values have more than %d lines (a file that is named twice counts twice); use fewer", maxListLines)
			return false
		}
		where := fmt.Sprintf("%s:%d: ", name, lineNumber)
		if strings.Contains(strings.TrimRight(line, "\r\n"), "\r") {
			c.fail(p, "%slines end with CR alone; end them with LF or CR LF, for example by tr '\\r' '\\n'", where)
			return false
		}
		value, _, _ := strings.Cut(line, "#")
		if value = strings.TrimSpace(value); value == "" {
			continue
		}
		if len(value) > maxListValueBytes {
			c.fail(p, "%sthe value has %d bytes; the most is %d. Write one value per line", where, len(value), maxListValueBytes)
		} else if add(p, where, value) {
			continue
		}
		if badLines++; badLines == maxBadLines {
			c.fail(p, "the check of %s ends here, after %d bad lines; fix them, then check again", name, maxBadLines)
			return false
		}
	}
	return badLines == 0
}
