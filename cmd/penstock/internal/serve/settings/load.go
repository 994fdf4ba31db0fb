package settings

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
)

type Sources struct {
	// Flags are the given flags, by name.
	Flags map[string]string

	// Environ is the environment, in the form of os.Environ.
	Environ []string

	// File reads the section server of a policy file. Default: there is no file.
	File func(path string) (*Section, error)

	// Only lists the settings to load besides config; the others stay zero. Default: all.
	Only []string

	// CanBeIncomplete allows required settings to be missing, such as for --print-settings.
	CanBeIncomplete bool
}

// Load takes each setting from its flag, else from the environment, else from the file, else from
// its default. A variable that is empty counts as not set. The error lists all problems with their
// sources, and wraps ErrInvalid.
func Load(from Sources) (Settings, error) {
	s := Settings{given: make(map[string]givenValue)}
	env := environment(from.Environ)
	s.Unknown = unknownVariables(env)

	errs := removedVariables(env)
	var file map[string]string // values of the file, by key
	var fileName string
	for _, row := range s.rows() {
		if from.Only != nil && row.Name != "config" && !slices.Contains(from.Only, row.Name) {
			continue
		}
		value, err := row.find(from.Flags, env, file, fileName)
		s.given[row.Name] = value
		switch {
		case err != nil: // reported below
		case value.text != "":
			err = row.set(value.text)
		case row.Default != "":
			err = fmt.Errorf("it is empty; omit it for the default, %s", row.Default)
		}
		if err != nil {
			err = fmt.Errorf("%s%s (%s): %w", row.Name, row.show(value.text), value.from(), err)
			if _, isFlag := from.Flags[row.Name]; isFlag {
				err = flagError{err}
			}
			errs = append(errs, err)
		}
		if row.Name == "config" && s.Config != "" && from.File != nil { // config is the first row, so all others can use the file
			server, err := from.File(s.Config)
			if err != nil {
				return s, err
			}
			file, fileName = server.values(), s.Config
		}
	}
	if s.Demo && s.given["listen"].source == fromDefault {
		s.Listen = demoListen
		s.given["listen"] = givenValue{demoListen, fromDefault}
	}
	s.HasLonePort = s.given["store"].source == fromDefault && isPort(env["REDIS_PORT"])
	err := errors.Join(errs...)
	if err == nil && from.Only == nil && !from.CanBeIncomplete {
		err = s.check()
	}
	if err != nil {
		err = fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return s, err
}

// demoListen is the default of listen for the demo, which other machines need not reach.
const demoListen = "127.0.0.1:8080"

// find returns a setting's value and source, from the first source that has it.
func (r Row) find(flags, env, file map[string]string, fileName string) (givenValue, error) {
	if text, ok := flags[r.Name]; ok {
		return givenValue{text, "--" + r.Name}, nil
	}
	get := func(name string) string { return env[name] }
	for _, alias := range append([]Alias{{Name: r.Env()}}, r.Aliases...) {
		if alias.Read != nil {
			if text, ok := alias.Read(get); ok {
				return givenValue{text, alias.Name}, nil
			}
			continue
		}
		if text := env[alias.Name]; text != "" {
			return givenValue{text, alias.Name}, nil
		}
		if path := env[alias.Name+"_FILE"]; r.IsSecret && path != "" {
			content, err := ReadFile(path)
			text := strings.TrimRight(string(content), "\r\n")
			if err == nil && text == "" {
				err = fmt.Errorf("%s is empty; write the value into it", path)
			}
			return givenValue{text, alias.Name + "_FILE"}, err
		}
	}
	if text, ok := file[r.Key()]; ok && !r.IsNotInFile {
		return givenValue{text, "server." + r.Key() + " in " + fileName}, nil
	}
	return givenValue{r.Default, fromDefault}, nil
}

// ReadFile reads a regular file. It opens no other kind of file: opening a pipe, for example, may
// block forever.
func ReadFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file; write the name of one", path)
	}
	return os.ReadFile(path)
}

// show returns a space and the quoted value, for an error message. It returns "" if the value is
// secret or empty.
func (r Row) show(text string) string {
	if r.IsSecret || text == "" {
		return ""
	}
	return fmt.Sprintf(" %q", withoutUser(text))
}

func environment(environ []string) map[string]string {
	env := make(map[string]string)
	for _, line := range environ {
		name, text, _ := strings.Cut(line, "=")
		env[name] = text
	}
	return env
}

// unknownVariables returns the variables that begin with PENSTOCK_ and are not settings. If a
// Kubernetes service is called penstock, Kubernetes sets PENSTOCK_PORT… and PENSTOCK_SERVICE_…;
// these are not mistakes.
func unknownVariables(env map[string]string) (names []string) {
	for name := range env {
		isFromKubernetes := strings.HasPrefix(name, "PENSTOCK_PORT") || strings.HasPrefix(name, "PENSTOCK_SERVICE_")
		if !strings.HasPrefix(name, "PENSTOCK_") || isFromKubernetes {
			continue
		}
		isVariableOf := func(r Row) bool { return name == r.Env() || r.IsSecret && name == r.Env()+"_FILE" }
		if !slices.ContainsFunc(Table, isVariableOf) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// removed has the names of settings of earlier versions, and what to do about each.
var removed = map[string]string{
	"grpc-server":         "delete it: grpc-go's server answers all calls now",
	"allow-stated-limits": "its name is allow_caller_limits now",
}

// Removed returns what to do about a setting of earlier versions, by the name of its flag, and ""
// for any other name.
func Removed(name string) string { return removed[name] }

func removedVariables(env map[string]string) (errs []error) {
	for name := range removed {
		if variable := (Row{Name: name}).Env(); env[variable] != "" {
			errs = append(errs, fmt.Errorf("there is no variable %s any more; %s", variable, Removed(name)))
		}
	}
	return errs
}
