package settings

import (
	"fmt"
	"reflect"
	"strconv"

	"github.com/penstock/penstock/policy"
)

// A Mistake is what is wrong with a field of a policy file's server section.
type Mistake struct {
	Field string
	Err   error
}

// Check tells what is wrong with the server section of a policy file by itself, whatever flags and
// variables say.
func Check(server policy.ServerConfig) (mistakes []Mistake) {
	found := values(server)
	for _, row := range Table {
		text, ok := found[row.Key()]
		if !ok || row.NotFile {
			continue
		}
		if err := row.set(new(Settings), text); err != nil {
			mistakes = append(mistakes, Mistake{row.Key(), fmt.Errorf("%s%s: %w", row.Key(), row.show(text), err)})
		}
	}
	return mistakes
}

// values are what a policy file's server section says, by key, as it would be written in a flag.
func values(s policy.ServerConfig) map[string]string {
	found := make(map[string]string)
	v := reflect.ValueOf(s)
	for i := range v.NumField() {
		key := v.Type().Field(i).Tag.Get("yaml")
		switch field := v.Field(i).Interface().(type) {
		case string:
			if field != "" {
				found[key] = field
			}
		case *bool:
			if field != nil {
				found[key] = strconv.FormatBool(*field)
			}
		case *int64:
			if field != nil {
				found[key] = strconv.FormatInt(*field, 10)
			}
		}
	}
	return found
}
