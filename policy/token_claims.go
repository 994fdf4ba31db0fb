package policy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/golang-jwt/jwt/v5"
)

// claims are what a token says. Only a verified token has any. They are never changed once read.
type claims struct {
	set map[string]any // of string, json.Number, bool, nil, []any and map[string]any
}

// claimsDepthMax bounds how deeply objects and lists of a token lie in each other.
const claimsDepthMax = 32

// text is a claim that is a string, an integer or a boolean. A name with dots is that of a claim
// whose name has dots, or else of a claim in an object ("realm.role"). Anything else has no
// text. Nor has an empty string, or one with U+FFFD, which stands for every broken character.
func (c claims) text(name string) (string, bool) { return textOf(lookup(c.set, name)) }

// values are the texts of a claim that is a list, and otherwise its text alone, if it has any. The
// words of scope and scp, which hold several in one string, count as a list.
func (c claims) values(name string) []string {
	found := lookup(c.set, name)
	if words, ok := found.(string); ok && (name == "scope" || name == "scp") {
		return slices.DeleteFunc(strings.Fields(words), func(word string) bool { _, ok := textOf(word); return !ok })
	}
	list, ok := found.([]any)
	if !ok {
		list = []any{found}
	}
	var texts []string
	for _, v := range list {
		if s, ok := textOf(v); ok {
			texts = append(texts, s)
		}
	}
	return texts
}

// lookup finds a value by its name, or by the names on the way to it with dots between: the exact
// name first, then the shortest first step.
func lookup(object map[string]any, name string) any {
	if v, ok := object[name]; ok {
		return v
	}
	for i := range len(name) {
		if name[i] != '.' {
			continue
		}
		if inner, ok := object[name[:i]].(map[string]any); ok {
			if v := lookup(inner, name[i+1:]); v != nil {
				return v
			}
		}
	}
	return nil
}

func textOf(v any) (string, bool) {
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

// UnmarshalJSON reads the claims of a token. A name given twice is an error: who reads the other
// one sees another caller.
func (c *claims) UnmarshalJSON(data []byte) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	v, err := decodeOnce(d, claimsDepthMax)
	if err != nil {
		return err
	}
	set, ok := v.(map[string]any)
	if !ok {
		return errors.New("claims are not an object")
	}
	c.set = set
	return nil
}

// decodeOnce reads one value of at most the given depth, in which no object has a name twice.
func decodeOnce(d *json.Decoder, depth int) (any, error) {
	token, err := d.Token()
	if err != nil {
		return nil, err
	}
	if depth == 0 {
		return nil, fmt.Errorf("deeper than %d levels", claimsDepthMax)
	}
	switch token {
	case json.Delim('{'):
		object := make(map[string]any)
		for d.More() {
			token, err := d.Token()
			if err != nil {
				return nil, err
			}
			name, _ := token.(string)
			if _, twice := object[name]; twice {
				return nil, fmt.Errorf("%.64q is there twice", name)
			}
			if object[name], err = decodeOnce(d, depth-1); err != nil {
				return nil, err
			}
		}
		_, err := d.Token()
		return object, err
	case json.Delim('['):
		list := []any{}
		for d.More() {
			v, err := decodeOnce(d, depth-1)
			if err != nil {
				return nil, err
			}
			list = append(list, v)
		}
		_, err := d.Token()
		return list, err
	default:
		return token, nil
	}
}

// Validate is asked by the parser, after the signature and besides the times, the issuer and the
// audience.
func (c claims) Validate() error {
	sub, ok := c.set["sub"]
	if !ok {
		return nil
	}
	if _, isBool := sub.(bool); isBool {
		return fmt.Errorf("%w: sub is neither a string nor an integer", jwt.ErrInvalidType)
	}
	if _, ok := textOf(sub); !ok {
		return fmt.Errorf("%w: sub is neither a string with something in it nor an integer", jwt.ErrInvalidType)
	}
	return nil
}

func (c claims) GetExpirationTime() (*jwt.NumericDate, error) { return c.date("exp") }
func (c claims) GetNotBefore() (*jwt.NumericDate, error)      { return c.date("nbf") }
func (c claims) GetIssuedAt() (*jwt.NumericDate, error)       { return c.date("iat") }
func (c claims) GetIssuer() (string, error)                   { return c.word("iss") }
func (c claims) GetSubject() (string, error)                  { return c.word("sub") }

func (c claims) GetAudience() (jwt.ClaimStrings, error) {
	switch aud := c.set["aud"].(type) {
	case nil:
		return nil, nil
	case string:
		return jwt.ClaimStrings{aud}, nil
	case []any:
		var all jwt.ClaimStrings
		for _, v := range aud {
			s, ok := v.(string)
			if !ok {
				return nil, fmt.Errorf("%w: aud holds what is not a string", jwt.ErrInvalidType)
			}
			all = append(all, s)
		}
		return all, nil
	}
	return nil, fmt.Errorf("%w: aud is neither a string nor a list", jwt.ErrInvalidType)
}

// word is a claim that must be a string if it is there.
func (c claims) word(name string) (string, error) {
	v, ok := c.set[name]
	if !ok {
		return "", nil
	}
	s, ok := v.(string)
	if !ok {
		return "", fmt.Errorf("%w: %s is not a string", jwt.ErrInvalidType, name)
	}
	return s, nil
}

// lastDate is when the year 10000 begins, in seconds since 1970. What is beyond is no date, and may
// overflow one.
const lastDate = 253402300800

// date is a claim that must be a number of seconds since 1970 if it is there.
func (c claims) date(name string) (*jwt.NumericDate, error) {
	v, ok := c.set[name]
	if !ok {
		return nil, nil
	}
	number, ok := v.(json.Number)
	if !ok {
		return nil, fmt.Errorf("%w: %s is not a number", jwt.ErrInvalidType, name)
	}
	seconds, err := number.Float64()
	if err != nil || seconds < 0 || seconds >= lastDate {
		return nil, fmt.Errorf("%w: %s is not a date", jwt.ErrInvalidType, name)
	}
	return jwt.NewNumericDate(time.Unix(int64(seconds), 0)), nil
}
