package jwt

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	gojwt "github.com/golang-jwt/jwt/v5"

	"github.com/penstock/penstock/policy"
)

// claims are policy.Claims with the methods that the JWT library needs.
type claims struct{ policy.Claims }

// maxClaimsDepth is how many levels deep the objects and lists of a token may be nested.
const maxClaimsDepth = 32

// UnmarshalJSON reads the claims of a token. A name that occurs twice is an error: another program
// may read the other value, and so see another client.
func (c *claims) UnmarshalJSON(data []byte) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	v, err := decodeStrictly(d, maxClaimsDepth)
	if err != nil {
		return err
	}
	set, ok := v.(map[string]any)
	if !ok {
		return errors.New("claims are not an object")
	}
	c.Claims = set
	return nil
}

// decodeStrictly reads one value with at most depth levels. A name that occurs twice in an object
// is an error.
func decodeStrictly(d *json.Decoder, depth int) (any, error) {
	token, err := d.Token()
	if err != nil {
		return nil, err
	}
	if depth == 0 {
		return nil, fmt.Errorf("deeper than %d levels", maxClaimsDepth)
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
				return nil, fmt.Errorf("%.64q occurs twice", name)
			}
			if object[name], err = decodeStrictly(d, depth-1); err != nil {
				return nil, err
			}
		}
		_, err := d.Token()
		return object, err
	case json.Delim('['):
		list := []any{}
		for d.More() {
			v, err := decodeStrictly(d, depth-1)
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

// Validate checks "sub". The parser calls it after it has checked the signature.
func (c claims) Validate() error {
	sub, ok := c.Claims["sub"]
	if !ok {
		return nil
	}
	if _, isBool := sub.(bool); isBool {
		return fmt.Errorf("%w: sub is neither a string nor an integer", gojwt.ErrInvalidType)
	}
	if _, ok := c.Text("sub"); !ok {
		return fmt.Errorf("%w: sub is neither a string nor an integer, or it is empty", gojwt.ErrInvalidType)
	}
	return nil
}

func (c claims) GetExpirationTime() (*gojwt.NumericDate, error) { return c.dateClaim("exp") }
func (c claims) GetNotBefore() (*gojwt.NumericDate, error)      { return c.dateClaim("nbf") }
func (c claims) GetIssuedAt() (*gojwt.NumericDate, error)       { return c.dateClaim("iat") }
func (c claims) GetIssuer() (string, error)                     { return c.stringClaim("iss") }
func (c claims) GetSubject() (string, error)                    { return c.stringClaim("sub") }

func (c claims) GetAudience() (gojwt.ClaimStrings, error) {
	switch aud := c.Claims["aud"].(type) {
	case nil:
		return nil, nil
	case string:
		return gojwt.ClaimStrings{aud}, nil
	case []any:
		var all gojwt.ClaimStrings
		for _, v := range aud {
			s, ok := v.(string)
			if !ok {
				return nil, fmt.Errorf("%w: aud has a value that is not a string", gojwt.ErrInvalidType)
			}
			all = append(all, s)
		}
		return all, nil
	}
	return nil, fmt.Errorf("%w: aud is neither a string nor a list", gojwt.ErrInvalidType)
}

func (c claims) stringClaim(name string) (string, error) {
	v, ok := c.Claims[name]
	if !ok {
		return "", nil
	}
	s, ok := v.(string)
	if !ok {
		return "", fmt.Errorf("%w: %s is not a string", gojwt.ErrInvalidType, name)
	}
	return s, nil
}

// endOfDates is the beginning of the year 10000, in seconds since 1970. This date and later dates
// are rejected, because they may overflow.
const endOfDates = 253402300800

// dateClaim returns a claim that must be a number of seconds since 1970, or nil if there is none.
func (c claims) dateClaim(name string) (*gojwt.NumericDate, error) {
	v, ok := c.Claims[name]
	if !ok {
		return nil, nil
	}
	number, ok := v.(json.Number)
	if !ok {
		return nil, fmt.Errorf("%w: %s is not a number", gojwt.ErrInvalidType, name)
	}
	seconds, err := number.Float64()
	if err != nil || seconds < 0 || seconds >= endOfDates {
		return nil, fmt.Errorf("%w: %s is not a date", gojwt.ErrInvalidType, name)
	}
	return gojwt.NewNumericDate(time.Unix(int64(seconds), 0)), nil
}
