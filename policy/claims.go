package policy

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Claims are the contents of a verified token, by name. Values have the types string, json.Number,
// bool, nil, []any and map[string]any. Claims must not be changed.
type Claims map[string]any

// Text returns the text of a claim, if it has one. Only strings, integers and booleans have a text.
// An empty string has none, and neither has a string with U+FFFD, which stands for a broken
// character. A name with dots is first taken as the whole name of a claim. If there is no such
// claim, it is the path to a claim in an object ("realm.role").
func (c Claims) Text(name string) (string, bool) { return claimText(lookUp(c, name)) }

// Values returns the texts of all elements of a claim that is a list. For any other claim it
// returns the claim's text. Values without a text are left out. The claims scope and scp are lists
// of words in one string.
func (c Claims) Values(name string) []string {
	found := lookUp(c, name)
	if words, ok := found.(string); ok && (name == "scope" || name == "scp") {
		hasNoText := func(word string) bool {
			_, ok := claimText(word)
			return !ok
		}
		return slices.DeleteFunc(strings.Fields(words), hasNoText)
	}
	list, ok := found.([]any)
	if !ok {
		list = []any{found}
	}
	var texts []string
	for _, v := range list {
		if text, ok := claimText(v); ok {
			texts = append(texts, text)
		}
	}
	return texts
}

// lookUp finds a value by its name, or by a path of names with dots between them. lookUp tries the
// whole name first, and then each split at a dot, beginning with the shortest first part.
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
// spelling, so -0, 1.0 and 1e3 have no text.
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
