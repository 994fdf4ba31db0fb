package policy

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

func (c *compiler) names() {
	for i := range c.config.Identities {
		e := &c.config.Identities[i]
		_, word := partWords[e.Name]
		switch {
		case word || e.Name == "everyone" || e.Name == "first" || e.Name == "all":
			c.fail(&e.Name, "%q has a meaning of its own; name the identity otherwise", e.Name)
		case !identityLike(e.Name):
			c.fail(&e.Name, "%q cannot be the name of an identity; write letters, digits, - and _, beginning with a letter", clip(e.Name))
		}
		c.identities[e.Name] = &identityState{entry: e}
	}
	for i := range c.config.Identities {
		c.identity(c.identities[c.config.Identities[i].Name])
	}
}

func identityLike(s string) bool {
	return wordLike(strings.ReplaceAll(s, "-", "_")) && s[0] != '-' && s[0] != '_'
}

func (c *compiler) tiers() {
	tiers := c.config.Tiers
	for i := range tiers {
		e := &tiers[i]
		last := i == len(tiers)-1
		t := tier{name: e.Name, otherwise: e.Value.Otherwise}
		switch {
		case !kindLike(e.Name):
			c.fail(&e.Name, "%q cannot be the name of a tier; write 1 to 20 of a-z, 0-9 and -, beginning with a letter", clip(e.Name))
		case e.Name == "otherwise":
			c.fail(&e.Name, "a tier cannot be called otherwise; write free: otherwise for the tier of all others")
		case t.otherwise && !last:
			c.fail(&e.Value, "tier %s takes everybody, so no tier behind it is ever chosen; move it to the end", e.Name)
		case !t.otherwise && last:
			c.fail(&e.Value, "the last tier, %s, has conditions, so some callers would have none; add one for all others, as in free: otherwise", e.Name)
		case !t.otherwise && len(e.Value.Any) == 0:
			c.fail(&e.Value, "tier %s has no condition, so nobody would have it; add one, as in {header X-Plan: premium}", e.Name)
		}
		if !t.otherwise {
			t.when = c.conditions(&e.Value, "tier")
			c.chosenByCallers(e)
		}
		c.rules.tiers = append(c.rules.tiers, t)
	}
}

// chosenByCallers warns of a tier that callers can choose: by a short value, which is no secret.
func (c *compiler) chosenByCallers(e *Entry[Conditions]) {
	for _, clauses := range e.Value.Any {
		for i := range clauses {
			clause := &clauses[i]
			word, _, _ := strings.Cut(clause.Source, " ")
			if len(clauses) == 1 && clause.Values.File == "" && (word == "header" || word == "cookie" || word == "query") {
				c.warn(&clause.Source, "callers write %s themselves, and so choose tier %s, unless a proxy before this sets it; use a claim, or a list of keys in a file", clause.Source, e.Name)
			}
		}
	}
}

func (c *compiler) conditions(config *Conditions, what string) (list []condition) {
	if config.Otherwise {
		c.fail(config, "%s cannot be otherwise; name a source with its values, as in [{address: 10.0.0.0/8}]", what)
	}
	for i := range config.Any {
		list = append(list, c.condition(config.Any[i], what))
	}
	return list
}

// condition compiles what is asked by a match, a tier, allow or deny.
func (c *compiler) condition(clauses Condition, what string) (when condition) {
	for i := range clauses {
		clause := &clauses[i]
		var known []string
		if what == "match" {
			known = []string{"path"}
		}
		part, ok := c.part(&clause.Source, clause.Source, known...)
		if !ok {
			continue
		}
		switch {
		case what == "tier" && part.needs(partTier):
			c.fail(&clause.Source, "who has a tier cannot depend on the tier; use a claim, a header or a list")
			continue
		case what == "match" && part.needs(partSegment):
			c.fail(&clause.Source, "a match cannot test a named segment; write the segment itself into the path")
		case part.needs(partSegment):
			c.fail(&clause.Source, "%s goes by the request, whichever rule matches, and so not by a segment of a path; use a claim, a header or a list", what)
		}
		test := c.test(part, &clause.Values)
		if test.identifies = what != "match"; test.identifies {
			c.identifies(&part)
		}
		when = append(when, test)
	}
	return when
}

// identifies notes a header that tells who the client is.
func (c *compiler) identifies(s *part) {
	if s.what == partHeader {
		c.identifyingHeader(s.name)
	}
}

func (c *compiler) identifyingHeader(name string) {
	if list := &c.rules.identifying; !slices.Contains(*list, name) && !slices.Contains(inPreflights, name) {
		*list = append(*list, name)
	}
}

// test compiles what a part of a request may be.
func (c *compiler) test(part part, values *Values) test {
	t := test{part: part, texts: make(map[string]struct{}), networks: make(networks)}
	add := func(p any, where, text string) bool {
		switch {
		case text == "*":
			t.anything = true
		case part.what == partAddress:
			network, ok := parseNetwork(text)
			if !ok {
				c.fail(p, "%s%q is not an address or a network; write 192.0.2.1, 10.0.0.0/8 or 2001:db8::/32", where, clip(text))
				return false
			}
			t.networks.add(network)
		case part.what == partIdentity && !part.id.canBe(text):
			c.fail(p, "%s%q is never who pays; write the whole key, which begins with its kind, as in %s", where, clip(text), part.id.keyLike(clip(text)))
			return false
		case part.what == partTier && !slices.ContainsFunc(c.rules.tiers, func(t tier) bool { return t.name == text }):
			c.fail(p, "%sthere is no tier %q; %s", where, clip(text), suggestOf(text, c.rules.Tiers()))
			return false
		case part.what == partHost:
			host, ok := c.host(p, text)
			if !ok {
				return false
			}
			if host[0] == '*' {
				t.domains = append(t.domains, host)
			} else {
				t.texts[host] = struct{}{}
			}
		default:
			t.texts[text] = struct{}{}
		}
		return true
	}
	for i := range values.Is {
		add(&values.Is[i], "", values.Is[i])
	}
	if t.file = values.File; t.file != "" && c.lines(&values.File, values.File, add) && t.empty() {
		c.warn(&values.File, "%s has no values, so nobody is in it; write some, or remove the line", clip(values.File))
	}
	return t
}

// Bounds of files with values.
const (
	maxListFiles = 1000      // those that are named twice counted twice, here and below
	maxLists     = 64 << 20  // bytes of all files
	maxListLines = 1_000_000 // of all files
	maxListLine  = 16 << 10  // bytes
	maxListBad   = 10        // bad lines that are told one by one
)

// lines reads a file with one value per line. # begins a comment. It is false if the file has a
// mistake.
func (c *compiler) lines(p any, name string, add func(p any, where, text string) bool) bool {
	if c.listFiles++; c.listFiles > maxListFiles {
		if c.listFiles == maxListFiles+1 {
			c.fail(p, "there are more than %d files of values, those that are named twice counted twice; name fewer", maxListFiles)
		}
		return false
	}
	path := c.path(name)
	text, err := readFile(path, int64(maxLists-c.listBytes))
	if errors.Is(err, errLonger) {
		c.fail(p, "with %s, the files of values have more than %d bytes, those that are named twice counted twice; name fewer", name, maxLists)
		return false
	}
	if err != nil {
		c.fail(p, "the file cannot be read: %v; a name without / in front starts from the policy's folder", err)
		return false
	}
	c.rules.files = append(c.rules.files, path)
	c.digest.Write(text)
	c.listBytes += len(text)
	number, bad := 0, 0
	for line := range strings.Lines(strings.TrimPrefix(string(text), "\ufeff")) {
		number++
		if c.listLines++; c.listLines > maxListLines {
			c.fail(p, "the files of values have more than %d lines, those that are named twice counted twice; name fewer", maxListLines)
			return false
		}
		where := fmt.Sprintf("%s:%d: ", name, number)
		value, _, _ := strings.Cut(line, "#")
		if value = strings.TrimSpace(value); value == "" {
			continue
		}
		if len(value) > maxListLine {
			c.fail(p, "%sthe value has %d bytes; the longest has %d. Write one value in each line", where, len(value), maxListLine)
		} else if add(p, where, value) {
			continue
		}
		if bad++; bad == maxListBad {
			c.fail(p, "%s has more such lines; mend them all", name)
			return false
		}
	}
	return bad == 0
}
