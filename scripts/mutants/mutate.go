package main

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"math/big"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// A mutant is one file with one small change.
type mutant struct {
	file          string // path in the tree
	kind          string // of the change, such as "operator"
	line          int    // number of the changed line
	before, after string // the changed line, with single spaces
	text          []byte // the whole file after the change
}

// id identifies the mutant in equivalent.txt. It has no line number, because line numbers change
// often.
func (m *mutant) id() string { return m.file + " | " + m.before + " | " + m.after }

// An edit replaces a part of a file.
type edit struct {
	from, to    int // offsets in bytes; the byte at to stays
	replacement string
	kind        string
}

// mutantsOf returns all mutants of the files that match the pattern, except tests.
func mutantsOf(tree, pattern string) ([]mutant, error) {
	files, err := filepath.Glob(filepath.Join(tree, pattern))
	if err != nil {
		return nil, err
	}
	var all []mutant
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		name, err := filepath.Rel(tree, file)
		if err != nil {
			return nil, err
		}
		var edits []edit
		switch filepath.Ext(file) {
		case ".go":
			edits, err = editsOfGo(text)
		case ".lua":
			edits = editsOfLua(text)
		}
		if err != nil {
			return nil, err
		}
		for _, e := range edits {
			all = append(all, applyEdit(name, text, e))
		}
	}
	return all, nil
}

// applyEdit returns the mutant of a file that an edit makes.
func applyEdit(file string, text []byte, e edit) mutant {
	changed := bytes.Join([][]byte{text[:e.from], []byte(e.replacement), text[e.to:]}, nil)
	start := bytes.LastIndexByte(text[:e.from], '\n') + 1
	// linesTo returns the lines of a text, from the edited one to the one with the offset end.
	linesTo := func(text []byte, end int) string {
		if i := bytes.IndexByte(text[end:], '\n'); i >= 0 {
			end += i
		} else {
			end = len(text)
		}
		return strings.Join(strings.Fields(string(text[start:end])), " ")
	}
	return mutant{
		file: filepath.ToSlash(file), kind: e.kind, line: 1 + bytes.Count(text[:e.from], []byte("\n")), text: changed,
		before: linesTo(text, e.to), after: linesTo(changed, e.from+len(e.replacement)),
	}
}

// swapped has, for each operator, the one that replaces it in a mutant.
var swapped = map[token.Token]string{
	token.LSS: "<=", token.LEQ: "<", token.GTR: ">=", token.GEQ: ">", token.EQL: "!=", token.NEQ: "==",
	token.ADD: "-", token.SUB: "+", token.MUL: "/", token.QUO: "*", token.REM: "*",
	token.LAND: "||", token.LOR: "&&", token.AND: "|", token.OR: "&", token.SHL: ">>", token.SHR: "<<",
	token.INC: "--", token.DEC: "++", token.ADD_ASSIGN: "-=", token.SUB_ASSIGN: "+=",
}

// editsOfGo returns edits that swap operators, add 1 to whole numbers, swap true and false, negate
// conditions or drop statements.
func editsOfGo(text []byte) ([]edit, error) {
	files := token.NewFileSet()
	parsed, err := parser.ParseFile(files, "", text, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	var edits []edit
	at := func(p token.Pos) int { return files.Position(p).Offset }
	replace := func(from, to token.Pos, with, kind string) {
		edits = append(edits, edit{at(from), at(to), with, kind})
	}
	swapOperator := func(p token.Pos, op token.Token, kind string) {
		if with, ok := swapped[op]; ok {
			replace(p, p+token.Pos(len(op.String())), with, kind)
		}
	}
	dropEach := func(list []ast.Stmt) {
		for _, s := range list {
			switch s := s.(type) {
			case *ast.ExprStmt, *ast.IncDecStmt, *ast.SendStmt, *ast.DeferStmt:
				replace(s.Pos(), s.End(), "{}", "statement dropped")
			case *ast.AssignStmt:
				if s.Tok != token.DEFINE {
					replace(s.Pos(), s.End(), "{}", "statement dropped")
				}
			}
		}
	}
	ast.Inspect(parsed, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ImportSpec, *ast.Field:
			return false
		case *ast.BinaryExpr:
			swapOperator(n.OpPos, n.Op, "operator")
		case *ast.IncDecStmt:
			swapOperator(n.TokPos, n.Tok, "operator")
		case *ast.AssignStmt:
			swapOperator(n.TokPos, n.Tok, "operator")
		case *ast.BasicLit:
			if v, ok := new(big.Int).SetString(n.Value, 0); ok && n.Kind == token.INT {
				replace(n.Pos(), n.End(), v.Add(v, big.NewInt(1)).String(), "constant")
			}
		case *ast.Ident:
			switch n.Name {
			case "true":
				replace(n.Pos(), n.End(), "false", "constant")
			case "false":
				replace(n.Pos(), n.End(), "true", "constant")
			}
		case *ast.IfStmt:
			condition := string(text[at(n.Cond.Pos()):at(n.Cond.End())])
			replace(n.Cond.Pos(), n.Cond.End(), "!("+condition+")", "condition negated")
		case *ast.BlockStmt:
			dropEach(n.List)
		case *ast.CaseClause:
			dropEach(n.Body)
		case *ast.CommClause:
			dropEach(n.Body)
		}
		return true
	})
	return edits, nil
}

var (
	// comments, strings and the line #!lua
	luaNoCode    = regexp.MustCompile(`--.*|'[^'\n]*'|"[^"\n]*"|#!.*`)
	luaOperator  = regexp.MustCompile(`<=|>=|==|~=|[<>+*]| - |\band\b|\bor\b|\bmath\.min\b|\bmath\.max\b`)
	luaNumber    = regexp.MustCompile(`\b\d+\b`)
	luaCondition = regexp.MustCompile(`\bif (.*) then\b`)
	// assignments, and calls of Redis
	luaStatement = regexp.MustCompile(`(?m)^[ \t]*((?:[\w., \[\]]+ = |redis\.call\(|call\()[^\n]*)$`)
	luaSwapped   = map[string]string{
		"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "~=", "~=": "==", "+": "-", " - ": " + ", "*": "+",
		"and": "or", "or": "and", "math.min": "math.max", "math.max": "math.min",
	}
)

// editsOfLua returns the same kinds of edits for Lua. It finds them in the text, without a parser.
// Each changed file is valid Lua.
func editsOfLua(text []byte) (edits []edit) {
	// NUL bytes replace comments and strings, so that offsets in code and text are the same.
	code := luaNoCode.ReplaceAllFunc(text, func(noCode []byte) []byte { return bytes.Repeat([]byte("\x00"), len(noCode)) })
	for _, m := range luaOperator.FindAllIndex(code, -1) {
		edits = append(edits, edit{m[0], m[1], luaSwapped[string(code[m[0]:m[1]])], "operator"})
	}
	for _, m := range luaNumber.FindAllIndex(code, -1) {
		v, _ := new(big.Int).SetString(string(code[m[0]:m[1]]), 10)
		edits = append(edits, edit{m[0], m[1], v.Add(v, big.NewInt(1)).String(), "constant"})
	}
	for _, m := range luaCondition.FindAllSubmatchIndex(code, -1) {
		edits = append(edits, edit{m[2], m[3], "not (" + string(text[m[2]:m[3]]) + ")", "condition negated"})
	}
	for _, m := range luaStatement.FindAllSubmatchIndex(code, -1) {
		line := strings.TrimSpace(string(code[m[2]:m[3]]))
		isWhole := strings.Count(line, "(") == strings.Count(line, ")") && strings.Count(line, "{") == strings.Count(line, "}")
		isField := strings.HasSuffix(line, ",") // of a table
		isDeclaration := strings.HasPrefix(line, "local") || strings.Contains(line, "function")
		if isWhole && !isField && !isDeclaration {
			edits = append(edits, edit{m[2], m[3], "do end", "statement dropped"})
		}
	}
	return edits
}
