package scaffold

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/penstock/penstock/internal/wording"
)

// The bounds of a description in OpenAPI. They also bound everything that it contains.
const (
	MaxOpenAPI = 4 << 20 // bytes
	maxMarks   = 500_000 // characters that begin a node of YAML; each begins at most two nodes
	maxPaths   = 5_000
)

const (
	maxGroups    = 100   // with more, there is one group for all paths
	maxBases     = 8     // paths of servers that the rules match
	maxServerURL = 2_048 // bytes, with the values of its variables
)

type operation struct {
	method   string
	segments []string // a word, or * for a parameter
	bases    []string // paths of its servers; the segments follow them
	needsKey bool     // no request succeeds without the API key
	isLogin  bool     // it takes passwords
}

// A description has what a policy needs from an OpenAPI file.
type description struct {
	operations []operation
	keyHeader  string   // of the API key that operations need, or ""
	tokens     []string // schemes with tokens that operations accept
	bases      []string // paths of the first maxBases servers, which the rules match
	baseURLs   []string // for each of bases, the URL of the first server that has it
	otherBases []string // paths of other servers, at most maxListed
}

var methods = map[string]string{"get": "GET", "head": "HEAD", "post": "POST", "put": "PUT", "patch": "PATCH", "delete": "DELETE"}

// readOpenAPI reads a description in OpenAPI 3, as YAML or JSON. Errors begin with the file's name.
func readOpenAPI(name string, text []byte) (*description, error) {
	root, err := readRoot(name, text)
	if err != nil {
		return nil, err
	}
	d := &description{}
	if err := d.readPaths(name, root); err != nil {
		return nil, err
	}
	switch {
	case len(d.operations) == 0 && len(d.otherBases) > 0:
		return nil, fmt.Errorf("%s:%d: no operation has one of the first %d paths of servers, and the rules match only these; list fewer servers", name, field(root, "paths").Line, maxBases)
	case len(d.operations) == 0:
		return nil, fmt.Errorf("%s:%d: the paths have no operations; a policy needs at least one", name, field(root, "paths").Line)
	}
	return d, nil
}

// readRoot parses the file and returns its root, which has a field openapi with a version 3.
func readRoot(name string, text []byte) (*yaml.Node, error) {
	if len(strings.TrimSpace(string(text))) == 0 {
		return nil, fmt.Errorf("%s: the file is empty; a description in OpenAPI 3 must begin with its version, as in openapi: 3.1.0", name)
	}
	if countMarks(text) > maxMarks {
		return nil, fmt.Errorf("%s: the file has more than %d commas, colons, brackets, hyphens and lines; remove examples and schemas, because only the paths matter here", name, maxMarks)
	}
	var document yaml.Node
	if err := yaml.Load(text, &document); err != nil {
		var at *yaml.LoadError
		if errors.As(err, &at) && at.Mark.Line > 0 {
			return nil, fmt.Errorf("%s:%d:%d: the file is neither YAML nor JSON: %s; check indentation, quotes and brackets near here", name, at.Mark.Line, at.Mark.Column, at.Message)
		}
		return nil, fmt.Errorf("%s: the file is neither YAML nor JSON: %w", name, err)
	}
	if len(document.Content) == 0 || resolveAlias(document.Content[0]).Kind != yaml.MappingNode {
		return nil, fmt.Errorf("%s: the file is not a description in OpenAPI; such a file must begin with its version, as in openapi: 3.1.0", name)
	}
	root := resolveAlias(document.Content[0])
	version := field(root, "openapi")
	switch {
	case version == nil && field(root, "swagger") != nil:
		return nil, fmt.Errorf("%s:%d: this is Swagger 2; convert it to OpenAPI 3", name, field(root, "swagger").Line)
	case version == nil || !strings.HasPrefix(version.Value, "3."):
		return nil, fmt.Errorf("%s: the file is not a description in OpenAPI 3; such a file must begin with its version, as in openapi: 3.1.0", name)
	}
	return root, nil
}

func (d *description) readPaths(name string, root *yaml.Node) error {
	sharedBases, err := d.basesOf(name, root, []string{""})
	if err != nil {
		return err
	}
	paths := field(root, "paths")
	if paths == nil || paths.Kind != yaml.MappingNode || len(paths.Content) == 0 {
		return fmt.Errorf("%s: the description has no paths; a policy needs at least one", name)
	}
	if n := len(paths.Content) / 2; n > maxPaths { // keys and values alternate
		return fmt.Errorf("%s:%d: the description has %d paths; the most is %d", name, paths.Line, n, maxPaths)
	}
	known := schemesOf(root)
	var keyName string // the security scheme of d.keyHeader
	sharedSecurity := field(root, "security")
	for i := 0; i+1 < len(paths.Content); i += 2 {
		path, item := paths.Content[i], resolveAlias(paths.Content[i+1])
		if strings.HasPrefix(path.Value, "x-") { // an extension such as x-internal
			continue
		}
		if mistake := checkPath(path.Value); mistake != "" {
			return fmt.Errorf("%s:%d:%d: %s", name, path.Line, path.Column, mistake)
		}
		if item.Kind != yaml.MappingNode {
			return fmt.Errorf("%s:%d:%d: path %s has no operations; write them below it, as in get:", name, item.Line, item.Column, wording.Clip(path.Value))
		}
		segments := segmentsOf(path.Value)
		pathBases, err := d.basesOf(name, item, sharedBases)
		if err != nil {
			return err
		}
		for j := 0; j+1 < len(item.Content); j += 2 {
			method := methods[item.Content[j].Value]
			if method == "" {
				continue
			}
			object := resolveAlias(item.Content[j+1]) // of the operation
			security := field(object, "security")
			if security == nil {
				security = sharedSecurity
			}
			if keyName == "" {
				keyName, d.keyHeader = known.neededKey(security)
			}
			d.addTokens(known, security)
			bases, err := d.basesOf(name, object, pathBases)
			if err != nil {
				return err
			}
			if len(bases) > 0 {
				d.operations = append(d.operations, operation{method, segments, bases, keyName != "" && isNeeded(security, keyName), endsAsLogin(segments)})
			}
		}
	}
	return nil
}

func checkPath(path string) (mistake string) {
	shown := wording.Clip(path)
	switch {
	case path == "<<":
		return "merge keys (<<) are not supported; write the paths out"
	case path == "$ref":
		return "the paths are in another place ($ref); write them out here"
	case !strings.HasPrefix(path, "/"):
		return fmt.Sprintf("path %s does not begin with a slash; write %s", shown, wording.Clip("/"+path))
	}
	if strings.Count(path, "{") != strings.Count(path, "}") {
		return fmt.Sprintf("path %s has a { or a } without the other; write parameters as in /users/{id}", shown)
	}
	return ""
}

// countMarks counts the characters that begin a node of YAML. It is fast and needs no memory. The
// count bounds the memory that the nodes need.
func countMarks(text []byte) (n int) {
	for _, c := range text {
		switch c {
		case ',', ':', '[', '{', '-', '?', '\n', '\r':
			n++
		}
	}
	return n
}

func resolveAlias(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode && n.Alias != nil {
		return n.Alias
	}
	return n
}

func field(n *yaml.Node, name string) *yaml.Node {
	if n == nil || n.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == name {
			return resolveAlias(n.Content[i+1])
		}
	}
	return nil
}

// basesOf returns the paths of the servers that an object has, or those that it inherits. It adds
// new paths to d.bases. If d.bases is full, it adds them to d.otherBases, and does not return them.
func (d *description) basesOf(name string, object *yaml.Node, inherited []string) (bases []string, err error) {
	servers := field(object, "servers")
	if servers == nil || servers.Kind != yaml.SequenceNode || len(servers.Content) == 0 {
		return inherited, nil
	}
	for _, server := range servers.Content {
		base, err := basePath(name, resolveAlias(server))
		if err != nil {
			return nil, err
		}
		if !slices.Contains(d.bases, base) && len(d.bases) < maxBases {
			d.bases, d.baseURLs = append(d.bases, base), append(d.baseURLs, urlOf(resolveAlias(server)))
		}
		switch {
		case !slices.Contains(d.bases, base):
			if len(d.otherBases) < maxListed && !slices.Contains(d.otherBases, base) {
				d.otherBases = append(d.otherBases, base)
			}
		case !slices.Contains(bases, base):
			bases = append(bases, base)
		}
	}
	return bases, nil
}

func urlOf(server *yaml.Node) string {
	if at := field(server, "url"); at != nil {
		return at.Value
	}
	return ""
}

// requiredBases returns the paths of servers, as indexes in d.bases, without which no rule matches
// the requests of some operation. An operation needs no such path if one of its servers has the
// path "".
func (d *description) requiredBases() (indexes []int) {
	for i, base := range d.bases {
		requires := func(o operation) bool { return slices.Contains(o.bases, base) && !slices.Contains(o.bases, "") }
		if slices.ContainsFunc(d.operations, requires) {
			indexes = append(indexes, i)
		}
	}
	return indexes
}

func basePath(name string, server *yaml.Node) (string, error) {
	at := field(server, "url")
	if at == nil {
		return "", nil
	}
	text, err := withVariables(at.Value, field(server, "variables"))
	if err != nil {
		return "", fmt.Errorf("%s:%d:%d: %w", name, at.Line, at.Column, err)
	}
	// What is between the scheme and the next slash is the host.
	if _, rest, ok := strings.Cut(text, "://"); ok {
		_, path, _ := strings.Cut(rest, "/")
		text = "/" + path
	}
	u, err := url.Parse(text)
	if err != nil {
		return "", fmt.Errorf("%s:%d:%d: %s is not the URL of a server; write one such as https://api.example.com/v1", name, at.Line, at.Column, wording.Clip(at.Value))
	}
	base := ""
	for _, segment := range segmentsOf(u.EscapedPath()) {
		base += "/" + segment
	}
	return base, nil
}

// withVariables returns the URL of a server with the defaults of its variables. It does not replace
// variables within a default.
func withVariables(text string, variables *yaml.Node) (string, error) {
	var b strings.Builder
	rest := text
	for len(rest) <= maxServerURL && b.Len() <= maxServerURL {
		before, after, ok := strings.Cut(rest, "{")
		name, end, isClosed := strings.Cut(after, "}")
		if !ok || !isClosed {
			break
		}
		b.WriteString(before)
		if value := field(field(variables, name), "default"); value != nil {
			b.WriteString(value.Value)
		} else {
			b.WriteString("{" + name + "}")
		}
		rest = end
	}
	if b.Len()+len(rest) > maxServerURL {
		return "", fmt.Errorf("the URL of the server, with the defaults of its variables, is longer than %d bytes", maxServerURL)
	}
	return b.String() + rest, nil
}

// schemes are the security schemes of a description that a policy can use.
type schemes struct {
	headers map[string]string // of API keys, by scheme
	tokens  map[string]bool   // schemes whose clients send tokens
}

func schemesOf(root *yaml.Node) schemes {
	s := schemes{headers: make(map[string]string), tokens: make(map[string]bool)}
	all := field(field(root, "components"), "securitySchemes")
	if all == nil || all.Kind != yaml.MappingNode {
		return s
	}
	text := func(n *yaml.Node, name string) string {
		if n = field(n, name); n == nil {
			return ""
		}
		return n.Value
	}
	for i := 0; i+1 < len(all.Content); i += 2 {
		name, scheme := all.Content[i].Value, resolveAlias(all.Content[i+1])
		isBearer := strings.EqualFold(text(scheme, "scheme"), "bearer")
		switch kind := text(scheme, "type"); {
		case kind == "apiKey" && text(scheme, "in") == "header":
			if header := text(scheme, "name"); isHeader(header) {
				s.headers[name] = header
			}
		case kind == "oauth2", kind == "openIdConnect", kind == "http" && isBearer:
			s.tokens[name] = true
		}
	}
	return s
}

// neededKey returns a scheme with an API key that all alternatives of a security requirement need,
// and the header of the key.
func (s schemes) neededKey(security *yaml.Node) (name, header string) {
	all := alternatives(security)
	if len(all) == 0 {
		return "", ""
	}
	first := all[0]
	for i := 0; i+1 < len(first.Content); i += 2 {
		if name := first.Content[i].Value; s.headers[name] != "" && isNeeded(security, name) {
			return name, s.headers[name]
		}
	}
	return "", ""
}

// isNeeded reports whether each alternative of a security requirement has a scheme. If an
// alternative lacks the scheme, a request can succeed with a made-up key.
func isNeeded(security *yaml.Node, scheme string) bool {
	all := alternatives(security)
	return len(all) > 0 && !slices.ContainsFunc(all, func(n *yaml.Node) bool { return field(n, scheme) == nil })
}

// alternatives returns the alternatives of a security requirement. The fields of each are schemes.
func alternatives(security *yaml.Node) (list []*yaml.Node) {
	if security == nil || security.Kind != yaml.SequenceNode {
		return nil
	}
	for _, n := range security.Content {
		if n = resolveAlias(n); n.Kind != yaml.MappingNode {
			return nil
		}
		list = append(list, n)
	}
	return list
}

// addTokens adds the schemes with tokens that a security requirement accepts, up to maxListed.
func (d *description) addTokens(known schemes, security *yaml.Node) {
	for _, alternative := range alternatives(security) {
		for i := 0; i+1 < len(alternative.Content); i += 2 {
			name := alternative.Content[i].Value
			isNew := known.tokens[name] && !slices.Contains(d.tokens, name)
			if isNew && len(d.tokens) < maxListed {
				d.tokens = append(d.tokens, name)
			}
		}
	}
}

// segmentsOf returns the segments of a path. Parameters become *, and so do segments that a policy
// cannot match as a word.
func segmentsOf(path string) (segments []string) {
	for text := range strings.SplitSeq(strings.Trim(path, "/"), "/") {
		switch {
		case text == "":
		case text != "." && text != ".." && isWord(text):
			segments = append(segments, text)
		default:
			segments = append(segments, "*")
		}
	}
	return segments
}

// isWord reports whether a segment has up to 100 bytes, all of which URLs never escape.
func isWord(text string) bool {
	return len(text) <= 100 && !strings.ContainsFunc(text, func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && !strings.ContainsRune("-._~", c)
	})
}

// A group is a set of paths that share one rule, or one for reads and one for writes.
type group struct {
	patterns      []string // of all its paths, below each of their servers
	name          string
	reads, writes part
	logins        []login
}

// A login is a path that takes passwords.
type login struct {
	path     string
	methods  []string
	patterns []string // below each of its servers
}

// A part is the set of a group's operations that share one rule.
type part struct {
	methods       []string
	hasWithKey    bool // some operation needs the API key
	hasWithoutKey bool // some operation does not need it
}

func (p part) needsKey() bool { return p.hasWithKey && !p.hasWithoutKey }

func (p part) join(q part) part {
	return part{slices.Concat(p.methods, q.methods), p.hasWithKey || q.hasWithKey, p.hasWithoutKey || q.hasWithoutKey}
}

// makeGroups groups operations by the first word after the common prefix of all paths.
func makeGroups(operations []operation) []*group {
	common := commonPrefix(operations)
	var all []*group
	byPattern := make(map[string]*group)
	// A full pattern begins with the path of a server. Two patterns may have one full pattern, such
	// as /v1/users/** with the server path "", and /users/** with the server path /v1. They then
	// share a group.
	byFullPattern := make(map[string]*group)
	for _, o := range operations {
		pattern, name := patternOf(o.segments, common)
		for _, base := range o.bases {
			g := byFullPattern[base+pattern]
			if g == nil {
				g = byPattern[pattern]
			}
			if g == nil {
				g = &group{name: name}
				byPattern[pattern] = g
				all = append(all, g)
			}
			byFullPattern[base+pattern] = g
			g.add(o, base, pattern)
		}
	}
	if len(all) > maxGroups {
		one := &group{name: "api"}
		for _, o := range operations {
			for _, base := range o.bases {
				one.add(o, base, "/**")
			}
		}
		all = []*group{one}
	}
	return all
}

func (g *group) isSplit() bool { return len(g.reads.methods) > 0 && len(g.writes.methods) > 0 }

func (g *group) hasRuleByKey() bool {
	if g.isSplit() {
		return g.reads.needsKey() || g.writes.needsKey()
	}
	return g.reads.join(g.writes).needsKey()
}

// add adds an operation below a base path.
func (g *group) add(o operation, base, pattern string) {
	if !slices.Contains(g.patterns, base+pattern) {
		g.patterns = append(g.patterns, base+pattern)
	}
	p := &g.writes
	if o.method == "GET" || o.method == "HEAD" {
		p = &g.reads
	}
	if !slices.Contains(p.methods, o.method) {
		p.methods = append(p.methods, o.method)
	}
	if o.needsKey {
		p.hasWithKey = true
	} else {
		p.hasWithoutKey = true
	}
	if o.isLogin {
		g.addLogin("/"+strings.Join(o.segments, "/"), o.method, base)
	}
}

func (g *group) addLogin(path, method, base string) {
	at := slices.IndexFunc(g.logins, func(l login) bool { return l.path == path })
	if at < 0 {
		at = len(g.logins)
		g.logins = append(g.logins, login{path: path})
	}
	l := &g.logins[at]
	if !slices.Contains(l.methods, method) {
		l.methods = append(l.methods, method)
	}
	if !slices.Contains(l.patterns, base+path) {
		l.patterns = append(l.patterns, base+path)
	}
}

// endsAsLogin reports whether a path ends in a usual word for a path that takes passwords.
func endsAsLogin(segments []string) bool {
	return len(segments) > 0 && slices.Contains([]string{"login", "signin", "sign-in", "log-in", "authenticate", "token", "otp", "password-reset"},
		strings.ToLower(segments[len(segments)-1]))
}

// commonPrefix returns how many segments all paths have in common. The last segment of a path never
// counts, so that each path has a word of its own.
func commonPrefix(operations []operation) int {
	first := operations[0].segments
	n := max(len(first)-1, 0)
	for _, o := range operations[1:] {
		n = min(n, max(len(o.segments)-1, 0))
		for i := range n {
			if o.segments[i] != first[i] {
				n = i
				break
			}
		}
	}
	return n
}

// patternOf returns the pattern of a path's group, and a name for the group: a word of the path.
// common is the number of segments in the common prefix of all paths.
func patternOf(segments []string, common int) (pattern, name string) {
	end := common
	for end < len(segments) && segments[end] == "*" {
		end++
	}
	if end == len(segments) { // no word follows the common prefix
		end = common
	} else {
		name = segments[end]
		end++
	}
	if end == 0 {
		return "/**", "root"
	}
	if name == "" {
		name = segments[end-1]
	}
	return "/" + strings.Join(segments[:end], "/") + "/**", name
}
