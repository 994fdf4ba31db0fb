package policyfile

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/penstock/penstock/internal/syntax"
	"github.com/penstock/penstock/internal/wording"
	"github.com/penstock/penstock/policy"
)

func (c *compiler) compileIdentities() {
	for i := range c.config.Identities {
		e := &c.config.Identities[i]
		_, isSource := sourceWords[e.Name]
		switch {
		case isSource || e.Name == "global" || e.Name == "first_of" || e.Name == "all_of":
			c.fail(&e.Name, "%q is a reserved word; give the identity another name", e.Name)
		case !syntax.IsIdentifier(strings.ReplaceAll(e.Name, "-", "_")) || e.Name[0] == '-' || e.Name[0] == '_':
			c.fail(&e.Name, "%q cannot be the name of an identity; write letters, digits, - and _, beginning with a letter", wording.Clip(e.Name))
		}
		c.identities[e.Name] = &identityState{entry: e}
	}
	for i := range c.config.Identities {
		id := c.compileIdentity(c.identities[c.config.Identities[i].Name])
		c.spec.Identities = append(c.spec.Identities, id)
	}
}

// An identityState is the state of compiling a named identity. It detects identities that refer to
// themselves.
type identityState struct {
	entry           *namedEntry[identityConfig]
	compiled        *policy.Identity // nil: not compiled yet
	isBeingCompiled bool
}

func (c *compiler) compileIdentity(s *identityState) *policy.Identity {
	if s.isBeingCompiled {
		c.fail(&s.entry.Name, "identity %s refers to itself; write its parts", s.entry.Name)
		return invalidIdentity
	}
	if s.compiled == nil {
		s.isBeingCompiled = true
		s.compiled = c.compileIdentityConfig(&s.entry.Value)
		s.isBeingCompiled = false
	}
	return s.compiled
}

// invalidIdentity replaces an identity with a mistake.
var invalidIdentity = policy.ByFunc(func(policy.Attributes) string { return "" })

func (c *compiler) compileIdentityConfig(config *identityConfig) *policy.Identity {
	switch {
	case !config.isSet():
		c.fail(config, "the identity is missing; %s", identityForms)
		return invalidIdentity
	case config.Name == "global":
		return policy.Global()
	case config.Name == "ip":
		return policy.ByAddress()
	case config.Name != "":
		if state := c.identities[config.Name]; state != nil {
			return c.compileIdentity(state)
		}
		firstWord, _, _ := strings.Cut(config.Name, " ")
		if _, isSource := sourceWords[firstWord]; isSource {
			kind := "user"
			if strings.Contains(strings.ToLower(config.Name), "key") {
				kind = "key"
			}
			c.fail(config, "%q needs a kind, a word that the keys begin with, as in %s:abc; write {%[2]s: %[1]s}, or another word than %[2]s", wording.Clip(config.Name), kind)
		} else {
			c.fail(config, "there is no identity %q; %s", wording.Clip(config.Name), c.suggestIdentity(config.Name))
		}
		return invalidIdentity
	case config.First != nil:
		return c.compileCompound(config, &policy.Identity{FirstOf: c.compileIdentityList("first_of", &config.First)})
	case config.All != nil:
		return c.compileCompound(config, &policy.Identity{AllOf: c.compileIdentityList("all_of", &config.All)})
	}
	return c.compileSimple(config)
}

type identityNote struct {
	source    *string // where its source was written; nil for a compound identity
	partCount int     // the number of its parts, at any depth; 0 if it has a source
	depth     int     // the levels of identities in it
}

// maxParts is how many parts an identity may have. maxParts bounds the length of a key, and the
// time to compute the key.
const maxParts = 32

// compileCompound checks the size of an identity with parts, and returns it.
func (c *compiler) compileCompound(config *identityConfig, id *policy.Identity) *policy.Identity {
	partCount, depth := 0, 0
	for _, one := range slices.Concat(id.FirstOf, id.AllOf) {
		partCount += max(c.identityNotes[one].partCount, 1)
		depth = max(depth, c.identityNotes[one].depth+1)
	}
	if partCount == 0 {
		return invalidIdentity
	}
	if partCount > maxParts {
		c.fail(config, "the identity has %d parts, with those of the identities that it names; the most is %d", partCount, maxParts)
		return invalidIdentity
	}
	if depth > maxDepth {
		c.fail(config, "the identity is nested more than %d levels deep, with the identities that it names; use fewer levels", maxDepth)
		return invalidIdentity
	}
	c.identityNotes[id] = identityNote{partCount: partCount, depth: depth}
	return id
}

// suggestIdentity returns what an unknown name of an identity was probably meant to be.
func (c *compiler) suggestIdentity(name string) string {
	hint := suggestOf(name, slices.AppendSeq([]string{"ip", "global"}, maps.Keys(c.identities)))
	switch {
	case strings.HasPrefix(hint, "did you mean"):
		return hint
	case isHeaderLike(name):
		return fmt.Sprintf("for a header of the request write {key: header %s}", wording.Clip(name))
	}
	return hint + ", or write a part of the request, as in {key: header X-API-Key}"
}

func isHeaderLike(name string) bool {
	word, _, hasHyphen := strings.Cut(name, "-")
	_, isSource := sourceWords[word]
	return hasHyphen && !isSource && syntax.IsToken(name) && !strings.HasPrefix(name, "$")
}

// compileIdentityList compiles the parts of an identity. kind is first_of or all_of.
func (c *compiler) compileIdentityList(kind string, configs *[]identityConfig) []*policy.Identity {
	if len(*configs) == 0 {
		c.fail(configs, "the list of %s is empty; add an identity, as in {%[1]s: [{key: header X-API-Key}, ip]}", kind)
	}
	list := make([]*policy.Identity, len(*configs))
	for i := range list {
		list[i] = c.compileIdentityConfig(&(*configs)[i])
	}
	return list
}

func (c *compiler) compileSimple(config *identityConfig) *policy.Identity {
	id := &policy.Identity{Kind: config.Kind}
	c.identityNotes[id] = identityNote{source: &config.Source}
	if !syntax.IsKind(config.Kind) {
		c.fail(&config.Kind, "%q cannot be a kind, which is part of the key, as in key:abc; write 1 to 20 of a-z, 0-9 and -, beginning with a letter", wording.Clip(config.Kind))
	}
	var ok bool
	if id.Source, ok = c.compileSource(&config.Source, config.Source); !ok {
		return invalidIdentity
	}
	if id.Source.Kind == policy.KindIdentity {
		c.fail(&config.Source, "%s is an identity, and needs no kind; write only its name", config.Source)
		return invalidIdentity
	}
	if config.Only != nil {
		only := c.compileTest(id.Source, config.Only)
		id.AllowedValues = &only
	}
	return id
}
