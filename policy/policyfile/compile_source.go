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

var sourceWords = func() map[string]policy.Kind {
	words := make(map[string]policy.Kind)
	for kind := policy.KindMethod; kind < policy.KindIdentity; kind++ {
		if kind != policy.KindPath && kind != policy.KindRawQuery { // a rule's match has the path
			words[kind.String()] = kind
		}
	}
	return words
}()

const sourceForms = "write header NAME, cookie NAME, query NAME, descriptor KEY, claim NAME, segment NAME, ip, host, method, tier or the name of an identity"

// compileSource compiles a source. p points to where it was written. otherWords are further words
// that a message may suggest, although they are no sources.
func (c *compiler) compileSource(p any, text string, otherWords ...string) (policy.Source, bool) {
	words := strings.Fields(text)
	if len(words) == 0 {
		c.fail(p, "the source is empty; %s", sourceForms)
		return policy.Source{}, false
	}
	kind, isKnown := sourceWords[words[0]]
	switch {
	case isKnown && kind.IsNamed() && len(words) != 2:
		c.fail(p, "%q needs one name after %s; write %s NAME", wording.Clip(text), words[0], words[0])
		return policy.Source{}, false
	case isKnown && !kind.IsNamed() && len(words) > 1:
		c.fail(p, "%q has %q after %s; remove it", wording.Clip(text), wording.Clip(strings.Join(words[1:], " ")), words[0])
		return policy.Source{}, false
	case isKnown && kind.IsNamed():
		return c.compileNamedSource(p, kind, words[1])
	case isKnown && kind == policy.KindTier && len(c.config.Tiers) == 0:
		c.fail(p, "there are no tiers; add tiers: with conditions, or use another source")
		return policy.Source{}, false
	case isKnown:
		return policy.Source{Kind: kind}, true
	case len(words) == 1 && c.identities[text] != nil:
		return policy.Source{Kind: policy.KindIdentity, Identity: c.compileIdentity(c.identities[text])}, true
	}
	hint := suggestOf(words[0], slices.Concat(slices.Sorted(maps.Keys(sourceWords)), slices.Sorted(maps.Keys(c.identities)), otherWords))
	switch {
	case strings.HasPrefix(hint, "did you mean"):
	case len(words) == 1 && isHeaderLike(text):
		hint = fmt.Sprintf("write header %s", wording.Clip(text))
	default:
		hint = sourceForms
	}
	c.fail(p, "%q is not a part of a request; %s", wording.Clip(text), hint)
	return policy.Source{}, false
}

func (c *compiler) compileNamedSource(p any, kind policy.Kind, name string) (policy.Source, bool) {
	switch kind {
	case policy.KindHeader:
		if !syntax.IsToken(name) {
			c.fail(p, "%q cannot be the name of a header; use letters, digits and -", wording.Clip(name))
			return policy.Source{}, false
		}
		return policy.Header(name), true
	case policy.KindCookie:
		if !syntax.IsToken(name) {
			c.fail(p, "%q cannot be the name of a cookie; use letters, digits, - and _", wording.Clip(name))
			return policy.Source{}, false
		}
	case policy.KindClaim:
		if c.unreadable[&c.config.Tokens] {
			return policy.Source{}, false
		}
		if c.config.Tokens == nil {
			c.fail(p, "claim %s needs verified tokens; add tokens: with a secret, key_file, jwks_file or jwks_url", wording.Clip(name))
			return policy.Source{}, false
		}
	}
	return policy.Source{Kind: kind, Name: name}, true
}
