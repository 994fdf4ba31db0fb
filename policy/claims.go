package policy

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Claims are the contents of a verified token, by name. Values have the types string, json.Number,
// bool, nil, []any and map[string]any. They must not be changed.
type Claims map[string]any

// Text returns a claim that is a string, an integer or a boolean. A name with dots is the whole
// name of a claim if there is such a claim. Otherwise it is the path to a claim in an object
// ("realm.role"). Other claims have no text. An empty string has no text either, nor has a string
// with U+FFFD, which stands for a broken character.
func (c Claims) Text(name string) (string, bool) { return claimText(lookUp(c, name)) }

// Values returns the texts of a claim that is a list, and otherwise its text, if it has one. The
// claims scope and scp are lists of words in one string.
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

// lookUp finds a value by its name, or by a path of names with dots between them. It tries the
// whole name first. Then it tries each split at a dot, with the shortest first part first.
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

// claimText returns the text of a claim, if it has one. A number must be an integer in its only
// spelling, so -0, 1.0 and 1e3 have none.
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
