package settings

import (
	"reflect"
	"strconv"

	"github.com/penstock/penstock/policy"
)

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
