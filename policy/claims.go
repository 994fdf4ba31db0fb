package policy

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Claims are what a verified token says: values of type string, json.Number, bool, nil, []any and
// map[string]any, by their names. They must not be changed.
type Claims map[string]any

// Text is a claim that is a string, an integer or a boolean. A name with dots is that of a claim
// whose name has dots, or else of a claim in an object ("realm.role"). Anything else has no
// text. Nor has an empty string, or one with U+FFFD, which stands for every broken character.
func (c Claims) Text(name string) (string, bool) { return claimText(lookUp(c, name)) }

// Values are the texts of a claim that is a list, and otherwise its text alone, if it has any. The
// words of scope and scp, which hold several in one string, count as a list.
func (c Claims) Values(name string) []string {
	found := lookUp(c, name)
	if words, ok := found.(string); ok && (name == "scope" || name == "scp") {
		return slices.DeleteFunc(strings.Fields(words), func(word string) bool { _, ok := claimText(word); return !ok })
	}
	list, ok := found.([]any)
	if !ok {
		list = []any{found}
	}
	var texts []string
	for _, v := range list {
		if s, ok := claimText(v); ok {
			texts = append(texts, s)
		}
	}
	return texts
}

// lookUp finds a value by its name, or by the names on the way to it with dots between: the exact
// name first, then the shortest first step.
func lookUp(object map[string]any, name string) any {
	if v, ok := object[name]; ok {
		return v
	}
	for i := range len(name) {
		if name[i] != '.' {
			continue
		}
		if inner, ok := object[name[:i]].(map[string]any); ok {
			if v := lookUp(inner, name[i+1:]); v != nil {
				return v
			}
		}
	}
	return nil
}

func claimText(v any) (string, bool) {
	switch v := v.(type) {
	case string:
		if v != "" && !strings.ContainsRune(v, utf8.RuneError) {
			return v, true
		}
	case json.Number:
		if v != "-0" && !strings.ContainsAny(v.String(), ".eE") {
			return v.String(), true
		}
	case bool:
		return strconv.FormatBool(v), true
	}
	return "", false
}
