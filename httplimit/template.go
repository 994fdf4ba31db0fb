package httplimit

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/template"
	"text/template/parse"

	"github.com/penstock/penstock/internal/wording"
)

// maxTemplateBytes is how many bytes the template of a denial may have.
const maxTemplateBytes = 64 << 10

// checkTemplate returns what is wrong with the template of a denial, or "". It also runs the
// template once, as each denial does later. text/template cannot bound how long a template runs, so
// only a subset of its language is allowed. A loop must be over the policies of the denial. Calls
// of templates are forbidden, and so are functions that make a text longer.
func checkTemplate(body string) string {
	if len(body) > maxTemplateBytes {
		return fmt.Sprintf("the template has %d bytes; write at most %d", len(body), maxTemplateBytes)
	}
	t, err := template.New("body").Parse(body)
	if err == nil {
		if message := findForbidden(t); message != "" {
			return message
		}
		err = tryTemplate(t)
	}
	if err == nil {
		return ""
	}
	return fmt.Sprintf("the template cannot be parsed: %v; write it as for Go's text/template, with the fields .Status, .Rule, .Policies, "+
		".RetryAfter and .RetryAfterMS", strings.ReplaceAll(strings.TrimPrefix(err.Error(), "template: "), " in type httplimit.templateData", ""))
}

var templateFunctions = []string{"and", "or", "not", "eq", "ne", "lt", "le", "gt", "ge", "len", "index"}

// findForbidden returns a message about the first forbidden part of a template, with what to write
// instead. It returns "" if the template has none.
func findForbidden(t *template.Template) string {
	if len(t.Templates()) > 1 {
		return "the template defines another one; write its text in place of the call"
	}
	c := templateChecker{tree: t.Tree}
	c.checkList(t.Root, false)
	return c.message
}

// A templateChecker walks through a template, and keeps a message about the first forbidden node.
type templateChecker struct {
	tree    *parse.Tree
	message string // about the first forbidden node; "" if there is none
}

func (c *templateChecker) checkList(list *parse.ListNode, isInLoop bool) {
	if list == nil {
		return
	}
	for _, n := range list.Nodes {
		c.checkNode(n, isInLoop)
	}
}

func (c *templateChecker) checkNode(n parse.Node, isInLoop bool) {
	switch n := n.(type) {
	case *parse.TextNode, *parse.CommentNode, *parse.BreakNode, *parse.ContinueNode:
	case *parse.ActionNode:
		c.checkPipe(n.Pipe)
	case *parse.IfNode:
		c.checkPipe(n.Pipe)
		c.checkList(n.List, isInLoop)
		c.checkList(n.ElseList, isInLoop)
	case *parse.RangeNode:
		if isInLoop {
			c.refuse(n, "a loop cannot be in another: write it after the first")
		}
		if !isOverPolicies(n.Pipe) {
			c.refuse(n, "a loop is over the policies only: write {{range .Policies}}")
		}
		c.checkList(n.List, true)
		c.checkList(n.ElseList, isInLoop)
	case *parse.WithNode:
		c.refuse(n, "write {{if ...}}, and name the field in it")
	default:
		c.refuse(n, "it cannot define or call templates: write the text in place of the call")
	}
}

// isOverPolicies reports whether a range is over .Policies or $.Policies. Only templateData has
// this field, so the loop cannot be over another value.
func isOverPolicies(p *parse.PipeNode) bool {
	if len(p.Cmds) != 1 || len(p.Cmds[0].Args) != 1 {
		return false
	}
	switch n := p.Cmds[0].Args[0].(type) {
	case *parse.FieldNode:
		return slices.Equal(n.Ident, []string{"Policies"})
	case *parse.VariableNode:
		return slices.Equal(n.Ident, []string{"$", "Policies"})
	}
	return false
}

func (c *templateChecker) checkPipe(p *parse.PipeNode) {
	for _, command := range p.Cmds {
		for _, n := range command.Args {
			c.checkOperand(n)
		}
	}
}

func (c *templateChecker) checkOperand(n parse.Node) {
	switch n := n.(type) {
	case *parse.BoolNode, *parse.DotNode, *parse.FieldNode, *parse.NilNode, *parse.NumberNode, *parse.StringNode, *parse.VariableNode:
	case *parse.PipeNode:
		c.checkPipe(n)
	case *parse.ChainNode:
		c.checkOperand(n.Node)
	case *parse.IdentifierNode:
		if !slices.Contains(templateFunctions, n.Ident) {
			c.refuse(n, "the functions are ["+strings.Join(templateFunctions, " ")+"]: write one of these, or the field alone")
		}
	default:
		c.refuse(n, "write a field, a text, a number or a function")
	}
}

func (c *templateChecker) refuse(n parse.Node, remedy string) {
	if c.message == "" {
		at, text := c.tree.ErrorContext(n)
		c.message = fmt.Sprintf("the template cannot have %s (%s); %s", wording.Clip(text), at, remedy)
	}
}

// tryTemplate executes a template for a request that may be retried, and for one that costs more
// than its limit.
func tryTemplate(t *template.Template) error {
	mayRetry := templateData{Status: 429, Rule: "rule", Policies: []string{"rule.limit"}, RetryAfter: 1, RetryAfterMS: 1000}
	tooExpensive := templateData{Status: 429, Rule: "rule", Policies: []string{"rule.limit"}}
	for _, denial := range []templateData{mayRetry, tooExpensive} {
		if err := t.Execute(io.Discard, denial); err != nil {
			return err
		}
	}
	return nil
}
