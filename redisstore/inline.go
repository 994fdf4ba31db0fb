package redisstore

import (
	"fmt"
	"regexp"
	"strings"
)

// To define a local function costs a script about as much as to run it, and it is defined anew at every call. So the composer
// puts functions in line where it can. Two forms of Lua functions are understood:
//
//   - one whose body is "return" and one expression stands for that expression, wherever it is called;
//   - any other without a loop, where its call is a statement "a, b = f(…)" or "local a, b = f(…)" on one line.
//
// Others stay functions.

// A function is a Lua function as text.
type function struct {
	name       string
	parameters string
	body       string
	expression string // if it is nothing else
	loops      bool
}

var (
	definition = regexp.MustCompile(`(?ms)^local function (\w+)\(([^)]*)\)\n(.*?)^end\n`)
	comment    = regexp.MustCompile(`(?m)[ \t]*--.*$`)
	blank      = regexp.MustCompile(`\n\s*\n`)
	looping    = regexp.MustCompile(`\b(while|for|repeat)\b`)
	returning  = regexp.MustCompile(`(?m)^(\s*)return (.*)$`)
)

func uncomment(lua string) string {
	return blank.ReplaceAllString(comment.ReplaceAllString(lua, ""), "\n")
}

// functionsOf reads the functions that a text defines at its top level.
func functionsOf(lua string) []function {
	var functions []function
	for _, m := range definition.FindAllStringSubmatch(lua, -1) {
		f := function{name: m[1], parameters: m[2], body: m[3]}
		if body, ok := strings.CutPrefix(strings.TrimSpace(m[3]), "return "); ok && !strings.Contains(body, "\n") {
			if values, _ := argumentsAt(body+")", 0); len(values) == 1 {
				f.expression = body
			}
		}
		f.loops = looping.MatchString(f.body)
		functions = append(functions, f)
	}
	return functions
}

// inline puts the functions in line in a text, the last defined first. A function that is still called then is defined in front.
func inline(text string, functions []function) string {
	for i := len(functions) - 1; i >= 0; i-- {
		f := functions[i]
		if f.expression != "" {
			text = f.asExpression(text)
			continue
		}
		if !f.loops { // a return inside would leave the loop only
			text = f.asStatement(text)
		}
		if mentions(text, f.name) {
			text = fmt.Sprintf("local function %s(%s)\n%send\n%s", f.name, f.parameters, f.body, text)
		}
	}
	return text
}

func mentions(text, name string) bool {
	return regexp.MustCompile(`\b` + name + `\b`).MatchString(text)
}

// asStatement replaces the statements that assign what f returns. Its body becomes a block that is left by break.
func (f function) asStatement(text string) string {
	statement := regexp.MustCompile(`(?m)^([ \t]*)(local )?([\w, ]+) = ` + f.name + `\((.*)\)$`)
	return statement.ReplaceAllStringFunc(text, func(line string) string {
		m := statement.FindStringSubmatch(line)
		indent, local, names, arguments := m[1], m[2], m[3], m[4]
		if local != "" {
			local = indent + "local " + names + "\n"
		}
		body, locals := f.bind(arguments)
		block := func(results string) string {
			body := returning.ReplaceAllString(body, "${1}"+results+" = ${2}\n${1}break")
			return fmt.Sprintf("%srepeat\n%s%s%suntil true", indent, locals, body, indent)
		}
		if !f.hides(names) {
			return local + block(names)
		}
		var results []string
		for i := range strings.Split(names, ",") {
			results = append(results, fmt.Sprintf("r%d", i+1))
		}
		all := strings.Join(results, ", ")
		return fmt.Sprintf("%s%sdo\n%slocal %s\n%s\n%s%s = %s\n%send", local, indent, indent, all, block(all), indent, names, all, indent)
	})
}

var (
	assigning = regexp.MustCompile(`(?m)^\s*(?:local )?([\w, ]+) = `)
	declaring = regexp.MustCompile(`(?m)^\s*local ([\w, ]+)`)
)

// bind gives f's parameters their arguments: by writing the argument's name for the parameter's where it is never assigned, and by
// local variables otherwise.
func (f function) bind(arguments string) (body, locals string) {
	assigned, declared := namesIn(assigning, f.body), namesIn(declaring, f.body)
	values, _ := argumentsAt(arguments+")", 0)
	renamed := map[string]string{}
	var names, initial []string
	for i, parameter := range strings.Split(f.parameters, ", ") {
		switch {
		case i >= len(values):
			names, initial = append(names, parameter), append(initial, "nil")
		case simple.MatchString(values[i]) && !assigned[parameter] && !declared[values[i]] && parameter != "_":
			renamed[parameter] = values[i]
		case parameter != "_" || assigned["_"]:
			names, initial = append(names, parameter), append(initial, values[i])
		}
	}
	body = word.ReplaceAllStringFunc(f.body, func(name string) string {
		if to, ok := renamed[name]; ok {
			return to
		}
		return name
	})
	if len(names) > 0 {
		locals = "local " + strings.Join(names, ", ") + " = " + strings.Join(initial, ", ") + "\n"
	}
	return body, locals
}

var word = regexp.MustCompile(`\b[A-Za-z_]\w*\b`)

func namesIn(statements *regexp.Regexp, body string) map[string]bool {
	names := map[string]bool{}
	for _, m := range statements.FindAllStringSubmatch(body, -1) {
		for _, name := range strings.Split(m[1], ",") {
			names[strings.TrimSpace(name)] = true
		}
	}
	return names
}

// hides tells whether one of the names may mean something else inside f.
func (f function) hides(names string) bool {
	for _, name := range strings.Split(names, ",") {
		if name = strings.TrimSpace(name); mentions(f.parameters+"\n"+f.body, name) {
			return true
		}
	}
	return false
}

// asExpression replaces the calls of f by its expression.
func (f function) asExpression(text string) string {
	call := regexp.MustCompile(`\b` + f.name + `\(`)
	parameter := regexp.MustCompile(`\b(` + strings.ReplaceAll(f.parameters, ", ", "|") + `)\b`)
	for {
		at := call.FindStringIndex(text)
		if at == nil {
			return text
		}
		arguments, end := argumentsAt(text, at[1])
		values := map[string]string{}
		for i, name := range strings.Split(f.parameters, ", ") {
			values[name] = parenthesize(arguments[i])
		}
		expression := parameter.ReplaceAllStringFunc(f.expression, func(name string) string { return values[name] })
		text = text[:at[0]] + "(" + expression + ")" + text[end:]
	}
}

var simple = regexp.MustCompile(`^\w+$`)

func parenthesize(expression string) string {
	if simple.MatchString(expression) {
		return expression
	}
	return "(" + expression + ")"
}

// argumentsAt splits the arguments of a call, from behind its opening parenthesis. It returns where the call ends.
func argumentsAt(text string, start int) (arguments []string, end int) {
	depth := 0
	for i := start; i < len(text); i++ {
		switch c := text[i]; {
		case c == '(':
			depth++
		case c == ')' && depth > 0:
			depth--
		case c == ')':
			return append(arguments, strings.TrimSpace(text[start:i])), i + 1
		case c == ',' && depth == 0:
			arguments = append(arguments, strings.TrimSpace(text[start:i]))
			start = i + 1
		}
	}
	panic("unreachable: a call without an end in a script of ours: " + text[start:min(start+40, len(text))])
}
