package settings

import "fmt"

// removed has the names of settings of earlier versions, and what to do about each.
var removed = map[string]string{
	"grpc-server": "grpc-go's server answers all calls now",
}

// Removed returns what to do about a setting of earlier versions, by the name of its flag, and ""
// for any other name.
func Removed(name string) string {
	why, ok := removed[name]
	if !ok {
		return ""
	}
	return "delete it: " + why
}

func removedVariables(env map[string]string) (errs []error) {
	for name := range removed {
		if variable := (Row{Name: name}).Env(); env[variable] != "" {
			errs = append(errs, fmt.Errorf("there is no variable %s any more; %s", variable, Removed(name)))
		}
	}
	return errs
}
