package luagen

import (
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/penstock/penstock/internal/syntax"
)

// Two kinds of Lua functions are inlined:
//
//   - A function whose body is "return" and one expression. Each call is replaced by the
//     expression.
//   - A function without a return in a loop. A call is replaced if it is a statement on one line,
//     "a, b = f(…)", "local a, b = f(…)" or "f(…)".
//
// Others stay functions. Each pass reads the text once, because a request may wait for its script
// to be generated.

// A function is a Lua function as text.
type function struct {
	name        string
	parameters  []string
	body        string
	expression  string          // if the body only returns one expression: that expression; else ""
	cannotLeave bool            // a return is in a loop: it would become a break, which only leaves the loop
	names       map[string]bool // all names in the body
	assigned    map[string]bool // names to which the body assigns
	declared    map[string]int  // how often the body declares a name as local
	results     []string        // the local variable that most returns give as this result, or ""
}

func removeComments(lua string) string {
	var out strings.Builder
	out.Grow(len(lua))
	for line := range strings.Lines(lua) {
		if code, _, hasComment := strings.Cut(line, "--"); hasComment {
			line = strings.TrimRight(code, " \t") + "\n"
		}
		if strings.TrimSpace(line) != "" {
			out.WriteString(line)
		}
	}
	return out.String()
}

// functionsOf reads the functions that a text defines at its top level. In the bodies of these
// functions, it inlines calls of others.
func functionsOf(lua string, others []function) []function {
	const begin, end = "local function ", "\nend\n"
	var functions []function
	for {
		start := strings.Index(lua, begin)
		if start < 0 {
			return functions
		}
		if start > 0 && lua[start-1] != '\n' { // not at the top level
			lua = lua[start+len(begin):]
			continue
		}
		text, rest, _ := strings.Cut(lua[start+len(begin):], end)
		lua = rest
		head, body, _ := strings.Cut(text, ")\n")
		name, parameters, _ := strings.Cut(head, "(")
		functions = append(functions, newFunction(name, parameters, body+"\n", others))
	}
}

func newFunction(name, parameters, body string, others []function) function {
	f := function{name: name, parameters: strings.Split(parameters, ", ")}
	f.cannotLeave = returnsInLoop(body) // before inlining, which adds repeat blocks
	body = replaceAllCalls(body, others)
	f.body = body
	if expression, ok := strings.CutPrefix(strings.TrimSpace(body), "return "); ok && !strings.Contains(expression, "\n") {
		if values, _ := argumentsAt(expression+")", 0); len(values) == 1 {
			f.expression = expression
		}
	}
	f.recordNames()
	f.findResults()
	return f
}

// returnsInLoop reports whether a return is in a loop. The end of a loop has the indent of its
// beginning.
func returnsInLoop(body string) bool {
	indent := -1 // of the outermost loop; -1 outside of loops
	for line := range strings.Lines(body) {
		code := strings.TrimLeft(line, " \t")
		switch word := code[:listEnd(code)]; {
		case indent < 0 && (strings.HasPrefix(word, "while ") || strings.HasPrefix(word, "for ") || word == "repeat"):
			indent = len(line) - len(code)
		case indent >= 0 && strings.HasPrefix(word, "return "):
			return true
		case len(line)-len(code) == indent:
			indent = -1
		}
	}
	return false
}

// recordNames records the names in the body, and which of them the body assigns or declares.
func (f *function) recordNames() {
	f.names, f.assigned, f.declared = make(map[string]bool, 64), make(map[string]bool), make(map[string]int)
	for _, name := range names(f.body) {
		f.names[name] = true
	}
	for line := range strings.Lines(f.body) {
		line, isLocal := strings.CutPrefix(strings.TrimLeft(line, " \t"), "local ")
		list := line[:listEnd(line)]
		if isLocal {
			for name := range strings.SplitSeq(list, ",") {
				f.declared[strings.TrimSpace(name)]++
			}
		}
		isAssignment := strings.HasSuffix(list, " ") && strings.HasPrefix(line[len(list):], "= ")
		if isAssignment {
			for name := range strings.SplitSeq(list, ",") {
				f.assigned[strings.TrimSpace(name)] = true
			}
		}
	}
}

// findResults finds the local variables that f returns. A variable must be declared once.
func (f *function) findResults() {
	for line := range strings.Lines(f.body) {
		list, isReturn := strings.CutPrefix(strings.TrimSpace(line), "return ")
		if !isReturn {
			continue
		}
		values, _ := argumentsAt(list+")", 0)
		for i, value := range values {
			if i == len(f.results) {
				f.results = append(f.results, "")
			}
			isVariable := f.declared[value] == 1 && !slices.Contains(f.parameters, value) && !slices.Contains(f.results, value)
			if isVariable && f.results[i] == "" {
				f.results[i] = value
			}
		}
	}
}

// listEnd returns the length of the list of names that a text begins with.
func listEnd(text string) int {
	for i := range len(text) {
		if c := text[i]; !isNameByte(c) && c != ',' && c != ' ' {
			return i
		}
	}
	return len(text)
}

// inline inlines functions in a text, the last function first. If a function is still called after
// that, its definition is put in front of the text.
func inline(text string, functions []function) string {
	for i := len(functions) - 1; i >= 0; i-- {
		f := &functions[i]
		text = f.replaceCalls(text)
		if hasName(text, f.name) {
			text = "local function " + f.name + "(" + strings.Join(f.parameters, ", ") + ")\n" + f.body + "end\n" + text
		}
	}
	return text
}

// replaceAllCalls inlines functions in a text. Calls that it cannot replace stay as they are.
func replaceAllCalls(text string, functions []function) string {
	for i := len(functions) - 1; i >= 0; i-- {
		text = functions[i].replaceCalls(text)
	}
	return text
}

// replaceCalls inlines f in a text, as far as its kind of function allows.
func (f *function) replaceCalls(text string) string {
	switch {
	case f.expression != "":
		return f.inlineExpression(text)
	case f.cannotLeave:
		return text
	}
	return f.inlineStatements(text)
}

// inlineStatements replaces the statements that assign the results of f.
func (f *function) inlineStatements(text string) string {
	var out strings.Builder
	for from := 0; ; {
		at := indexName(text, f.name+"(", from)
		if at < 0 {
			return appendRest(&out, text)
		}
		// text[start:end] is the line of the call: an indent, then code, then the call.
		start := strings.LastIndexByte(text[:at], '\n') + 1
		end := len(text)
		if i := strings.IndexByte(text[at:], '\n'); i >= 0 {
			end = at + i
		}
		code := strings.TrimLeft(text[start:at], " \t")
		indent := text[start : at-len(code)]
		names, isLocal := strings.CutPrefix(code, "local ")
		names, isAssignment := strings.CutSuffix(names, " = ")
		if !isAssignment && code != "" || listEnd(names) < len(names) || text[end-1] != ')' {
			from = end
			continue
		}
		if out.Len() == 0 {
			out.Grow(len(text) + 4*len(f.body))
		}
		out.WriteString(text[:start])
		f.writeStatement(&out, indent, names, text[at+len(f.name)+1:end-1], isLocal)
		text, from = text[end:], 0
	}
}

// writeStatement replaces a statement that assigns f's results to names; there may be none. It
// writes the body of f as a block "repeat … until true", in which each return becomes such an
// assignment and a break.
func (f *function) writeStatement(out *strings.Builder, indent, names, arguments string, isLocal bool) {
	if isLocal {
		out.WriteString(indent + "local " + names + "\n")
	}
	body, locals := f.bind(arguments)
	if !f.hasAnyOf(names) {
		f.writeBlock(out, indent, locals, body, strings.Split(names, ", "), isLocal)
		return
	}
	// The body assigns to r1, r2, … instead. After the body, they are copied to the names.
	var results []string
	for i := range strings.Count(names, ",") + 1 {
		results = append(results, fmt.Sprintf("r%d", i+1))
	}
	all := strings.Join(results, ", ")
	out.WriteString(indent + "do\n" + indent + "local " + all + "\n")
	f.writeBlock(out, indent, locals, body, results, true)
	out.WriteString("\n" + indent + names + " = " + all + "\n" + indent + "end")
}

// writeBlock writes a body in which each return becomes an assignment to the results and a break.
// The results take the place of the local variables that f returns, so most of them need no
// assignment. isNew says that the results are nil before the body.
func (f *function) writeBlock(out *strings.Builder, indent, locals, body string, results []string, isNew bool) {
	renamed := make(map[string]string)
	var assigned []string // the results that the body assigns in place of its variables
	for i := range min(len(results), len(f.results)) {
		if f.results[i] != "" && !f.names[results[i]] {
			renamed[f.results[i]] = results[i]
			assigned = append(assigned, results[i])
		}
	}
	out.WriteString(indent + "repeat\n" + locals)
	for line := range strings.Lines(replaceNames(body, renamed)) {
		code := strings.TrimLeft(line, " \t")
		space := line[:len(line)-len(code)]
		if values, ok := strings.CutPrefix(code, "return "); ok {
			list, _ := argumentsAt(strings.TrimSpace(values)+")", 0)
			isCall := strings.HasSuffix(list[len(list)-1], ")") || list[len(list)-1] == "..." // it may have several values
			for i := len(list); i < len(results) && !isCall; i++ {
				value := results[i] // which is still nil
				if !isNew || slices.Contains(assigned, value) {
					value = "nil"
				}
				list = append(list, value)
			}
			writeAssignment(out, space, results, list)
			line = space + "break\n"
		} else if code == "return\n" {
			line = space + "break\n"
		} else if declared, ok := strings.CutPrefix(code, "local "); ok && declaresAny(declared, assigned) {
			line = space + undeclare(declared, assigned)
		}
		out.WriteString(line)
	}
	out.WriteString(indent + "until true")
}

// writeAssignment writes statements that assign values to names. It leaves out a name that has the
// value already. Single assignments are cheaper than one of all names.
func writeAssignment(out *strings.Builder, space string, names, values []string) {
	isSimple := len(values) >= len(names)
	for i := range min(len(values), len(names)) {
		for j := range i { // assigned before
			isSimple = isSimple && (values[i] == names[i] || values[j] == names[j] || !hasName(values[i], names[j]))
		}
	}
	if !isSimple {
		out.WriteString(space + strings.Join(names, ", ") + " = " + strings.Join(values, ", ") + "\n")
		return
	}
	for i, name := range names {
		if values[i] != name {
			out.WriteString(space + name + " = " + values[i] + "\n")
		}
	}
}

// declaresAny reports whether a declaration, whose "local " is cut off, has one of the names.
func declaresAny(declaration string, names []string) bool {
	list := declaration[:listEnd(declaration)]
	return slices.ContainsFunc(names, func(name string) bool { return hasName(list, name) })
}

// undeclare removes names from the list of a declaration, which has at least one of them.
func undeclare(declaration string, names []string) string {
	list := strings.Split(strings.TrimSpace(declaration[:listEnd(declaration)]), ", ")
	kept := slices.DeleteFunc(slices.Clone(list), func(name string) bool { return slices.Contains(names, name) })
	hasValues := strings.Contains(declaration, " = ")
	switch {
	case len(kept) == 0 && hasValues:
		return declaration
	case len(kept) == 0:
		return strings.Join(list, ", ") + " = nil\n"
	case hasValues:
		return "local " + strings.Join(kept, ", ") + "\n" + declaration
	}
	return "local " + strings.Join(kept, ", ") + "\n"
}

// bind returns the body of f for a call with these arguments. An argument that is a name replaces
// its parameter, if the body never assigns the parameter. Other arguments become local variables,
// and locals is the statement that defines them. The argument of a parameter _ is dropped, unless
// the body assigns _.
func (f *function) bind(arguments string) (body, locals string) {
	values, _ := argumentsAt(arguments+")", 0)
	renamed := make(map[string]string)
	var names, initial []string
	for i, parameter := range f.parameters {
		if i >= len(values) {
			names, initial = append(names, parameter), append(initial, "nil")
			continue
		}
		value := values[i]
		isDropped := parameter == "_" && !f.assigned["_"]
		canRename := parameter != "_" && isName(value) && !f.assigned[parameter] && f.declared[value] == 0
		switch {
		case isDropped:
		case canRename:
			renamed[parameter] = value
		default:
			names, initial = append(names, parameter), append(initial, value)
		}
	}
	if len(names) > 0 {
		locals = "local " + strings.Join(names, ", ") + " = " + strings.Join(initial, ", ") + "\n"
	}
	return replaceNames(f.body, renamed), locals
}

// hasAnyOf reports whether f uses one of the names itself. Then the body of f cannot assign to the
// caller's variable of that name.
func (f *function) hasAnyOf(names string) bool {
	for name := range strings.SplitSeq(names, ",") {
		name = strings.TrimSpace(name)
		if f.names[name] || slices.Contains(f.parameters, name) {
			return true
		}
	}
	return false
}

// inlineExpression replaces each call of f by its expression.
func (f *function) inlineExpression(text string) string {
	var out strings.Builder
	for {
		at := indexName(text, f.name+"(", 0)
		if at < 0 {
			return appendRest(&out, text)
		}
		if out.Len() == 0 {
			out.Grow(len(text) + len(text)/4)
		}
		arguments, end := argumentsAt(text, at+len(f.name)+1)
		values := make(map[string]string, len(arguments))
		for i, name := range f.parameters {
			values[name] = parenthesize(f.inlineExpression(arguments[i]))
		}
		out.WriteString(text[:at])
		out.WriteString("(" + replaceNames(f.expression, values) + ")")
		text = text[end:]
	}
}

// appendRest returns out followed by rest. If out is empty, that is rest itself, without a copy.
func appendRest(out *strings.Builder, rest string) string {
	if out.Len() == 0 {
		return rest
	}
	out.WriteString(rest)
	return out.String()
}

// parenthesize puts an expression in parentheses, unless it is a name.
func parenthesize(expression string) string {
	if isName(expression) {
		return expression
	}
	return "(" + expression + ")"
}

// argumentsAt splits the arguments of a call. start is the index after the opening parenthesis, and
// end is the index after the closing one.
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
	panic("unreachable: an embedded script has a call without an end: " + text[start:min(start+40, len(text))])
}

func isNameByte(c byte) bool { return syntax.IsAlphanumeric(rune(c)) || c == '_' }

// isName reports whether a text is a name, a name in a template, or a whole number.
func isName(text string) bool {
	for i := range len(text) {
		if !isNameByte(text[i]) && text[i] != '$' {
			return false
		}
	}
	return text != ""
}

// indexName returns the first index of begin in a text, from the index from on, or -1 if begin is
// not found. begin starts with a name. Places where this name is the end of a longer name are
// skipped.
func indexName(text, begin string, from int) int {
	for {
		i := strings.Index(text[from:], begin)
		if i < 0 {
			return -1
		}
		from += i
		if from == 0 || !isNameByte(text[from-1]) {
			return from
		}
		from++
	}
}

func hasName(text, name string) bool {
	for from := 0; ; {
		i := indexName(text, name, from)
		if i < 0 {
			return false
		}
		from = i + len(name)
		if from == len(text) || !isNameByte(text[from]) {
			return true
		}
	}
}

func replaceNames(text string, others map[string]string) string {
	if len(others) == 0 {
		return text
	}
	var out strings.Builder
	out.Grow(len(text) + len(text)/8)
	written := 0
	for start, name := range names(text) {
		if other, ok := others[name]; ok {
			out.WriteString(text[written:start])
			out.WriteString(other)
			written = start + len(name)
		}
	}
	out.WriteString(text[written:])
	return out.String()
}

// names iterates over the names and numbers in a text, with their indexes.
func names(text string) iter.Seq2[int, string] {
	return func(yield func(int, string) bool) {
		for i := 0; i < len(text); i++ {
			start := i
			for i < len(text) && isNameByte(text[i]) {
				i++
			}
			if i > start && !yield(start, text[start:i]) {
				return
			}
		}
	}
}
