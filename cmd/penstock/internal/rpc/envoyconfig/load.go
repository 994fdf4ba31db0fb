package envoyconfig

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	yaml1 "go.yaml.in/yaml/v2"

	"github.com/penstock/penstock/internal/panicked"
)

type File struct {
	Name    string // for errors
	Content []byte
}

// Options of Load. The zero value is useful.
type Options struct {
	// MergeDomains allows several files for one domain, as MERGE_DOMAIN_CONFIG does. By default, a
	// domain in two files is an error.
	MergeDomains bool
}

const (
	maxFileSize = 2 << 20   // bytes; the parsers may take 400 times as much memory
	maxMistakes = 100       // errors that are reported
	maxDepth    = 100       // levels of descriptors in descriptors
	maxLimits   = 1_000_000 // limits in all files; each takes about 1 KB of memory
	maxAllPaths = 128 << 20 // bytes of the paths of all descriptors together
	maxWarnings = 1000      // warnings that are kept
)

// Load reads a configuration. The files are YAML 1.1, with anchors and merge keys. Load refuses
// what envoyproxy/ratelimit refuses. It reports the errors of all files, up to 100 of them. The
// error is of type Errors and wraps ErrInvalid.
func Load(files []File, o Options) (*Config, error) {
	l := &loader{options: o, config: &Config{domains: make(map[string]*Domain)}, fileOf: make(map[string]string)}
	for _, f := range files {
		l.load(f)
	}
	if len(l.mistakes) > 0 {
		return nil, l.mistakes
	}
	return l.config, nil
}

type loader struct {
	options  Options
	config   *Config
	fileOf   map[string]string // the first file of each domain
	mistakes Errors
	allPaths int // bytes of the paths of all descriptors so far

	file  string // the file that is being loaded
	lines lineFinder
}

// fail reports an error at the value that the path leads to. The remedy tells how to fix it, and
// format and args tell what is wrong.
func (l *loader) fail(at path, remedy, format string, args ...any) {
	if len(l.mistakes) < maxMistakes {
		l.mistakes = append(l.mistakes, &Error{File: l.file, Line: l.lines.line(at), What: fmt.Sprintf(format, args...), Remedy: remedy})
	}
}

// warn reports a warning about the value that the path leads to.
func (l *loader) warn(at path, format string, args ...any) {
	if len(l.config.warnings) < maxWarnings {
		l.config.warnings = append(l.config.warnings, Warning{File: l.file, Line: l.lines.line(at), Text: fmt.Sprintf(format, args...)})
	}
}

// The structure of a file, for the YAML decoder.
type (
	yamlRoot struct {
		Domain      string
		Descriptors []yamlDescriptor
	}
	yamlDescriptor struct {
		Key            string
		Value          string
		RateLimit      *yamlLimit `yaml:"rate_limit"`
		Descriptors    []yamlDescriptor
		ShadowMode     bool `yaml:"shadow_mode"`
		QuotaMode      bool `yaml:"quota_mode"`
		DetailedMetric bool `yaml:"detailed_metric"`
		ValueToMetric  bool `yaml:"value_to_metric"`
		ShareThreshold bool `yaml:"share_threshold"`
		Metadata       map[string]any
	}
	yamlLimit struct {
		RequestsPerUnit uint32 `yaml:"requests_per_unit"`
		Unit            string
		Unlimited       bool
		Name            string
		Replaces        []yamlReplaces
	}
	yamlReplaces struct{ Name string }
)

func (l *loader) load(f File) {
	l.file, l.lines = f.Name, lineFinder{}
	if len(f.Content) > maxFileSize {
		l.fail(nil, "split it into several files", "it is larger than %d MB", maxFileSize>>20)
		return
	}
	lines, err := panicked.Try("read the lines of "+f.Name, func() (lineFinder, error) { return newLineFinder(f.Content), nil })
	if err == nil { // otherwise errors have no lines
		l.lines = lines
	}
	root, err := panicked.Try("read "+f.Name, func() (*yamlRoot, error) { return l.decode(f.Content) })
	if err != nil {
		l.failYAML(err)
	}
	if root == nil {
		return
	}
	l.addDomain(root)
	if countDocuments(f.Content) > 1 {
		l.warn(nil, "the file has several documents, and only the first is read; write one file for each domain")
	}
}

// decode reads the content twice: first into a generic map to check all keys, and then into a
// yamlRoot. If a key is wrong, decode calls fail, and returns neither a yamlRoot nor an error.
func (l *loader) decode(content []byte) (*yamlRoot, error) {
	generic := make(map[any]any)
	if err := yaml1.Unmarshal(content, &generic); err != nil {
		return nil, err
	}
	before := len(l.mistakes)
	l.checkKeys(generic, nil, inRoot)
	if len(l.mistakes) > before {
		return nil, nil
	}
	root := new(yamlRoot)
	if err := yaml1.Unmarshal(content, root); err != nil {
		return nil, err
	}
	return root, nil
}

var yamlLine = regexp.MustCompile(`line (\d+): `)

func (l *loader) failYAML(err error) {
	const remedy = "correct the file"
	texts := []string{strings.TrimPrefix(err.Error(), "yaml: ")}
	if e := (*yaml1.TypeError)(nil); errors.As(err, &e) {
		texts = e.Errors
	}
	for _, text := range texts {
		e := &Error{File: l.file, What: text, Remedy: remedy}
		if found := yamlLine.FindStringSubmatch(text); found != nil {
			e.Line, _ = strconv.Atoi(found[1])
			e.What = strings.Replace(text, found[0], "", 1)
		}
		e.What = strings.ReplaceAll(e.What, "envoyconfig.yaml", "a ") // envoyconfig.yamlLimit is "a Limit"
		if len(l.mistakes) < maxMistakes {
			l.mistakes = append(l.mistakes, e)
		}
	}
}

// countDocuments returns the number of documents, but at most 2.
func countDocuments(content []byte) int {
	d := yaml1.NewDecoder(bytes.NewReader(content))
	for n := 0; n < 2; n++ {
		var document any
		if err := d.Decode(&document); err != nil { // io.EOF after the last one
			return n
		}
	}
	return 2
}

// The places where keys have an effect. envoyproxy/ratelimit accepts a known key at any place, and
// ignores it at a wrong place.
const (
	inRoot       = "the file"
	inDescriptor = "a descriptor"
	inLimit      = "rate_limit"
	inReplaces   = "replaces"
)

var keyPlaces = map[string][]string{
	"domain":            {inRoot},
	"descriptors":       {inRoot, inDescriptor},
	"key":               {inDescriptor},
	"value":             {inDescriptor},
	"rate_limit":        {inDescriptor},
	"shadow_mode":       {inDescriptor},
	"quota_mode":        {inDescriptor},
	"detailed_metric":   {inDescriptor},
	"value_to_metric":   {inDescriptor},
	"share_threshold":   {inDescriptor},
	"metadata":          {inDescriptor},
	"unit":              {inLimit},
	"requests_per_unit": {inLimit},
	"unlimited":         {inLimit},
	"replaces":          {inLimit},
	"name":              {inLimit, inReplaces},
}

// keyList is the remedy for an unknown key.
const keyList = "write one of domain, descriptors, key, value, rate_limit, unit, requests_per_unit, unlimited, name, replaces, shadow_mode, quota_mode, " +
	"detailed_metric, value_to_metric, share_threshold and metadata"

// checkKeys checks the keys of a map and the types of its values. The place is one of inRoot,
// inDescriptor, inLimit and inReplaces.
func (l *loader) checkKeys(m map[any]any, at path, place string) {
	var keys []string
	for k := range m {
		name, ok := k.(string)
		if !ok {
			l.fail(at, "put it in quotes to make it a string", "the key %v is not a string", k)
			continue
		}
		keys = append(keys, name)
	}
	slices.Sort(keys)
	for _, key := range keys {
		here := at.join(key)
		places, ok := keyPlaces[key]
		if !ok {
			l.fail(here, keyList, "unknown key '%s'", key)
			continue
		}
		if !slices.Contains(places, place) {
			l.warn(here, "%s has no effect in %s; write it in %s", key, place, places[0])
		}
		if key != "metadata" {
			l.checkValue(key, m[key], here)
		} else if place == inDescriptor {
			l.checkMetadata(m[key], here)
		}
	}
}

// checkMetadata checks that all texts of metadata are UTF-8. Responses can have no other text.
func (l *loader) checkMetadata(value any, at path) {
	switch v := value.(type) {
	case map[any]any:
		for key, inner := range v {
			name := fmt.Sprint(key)
			l.checkMetadata(name, at)
			l.checkMetadata(inner, at.join(name))
		}
	case []any:
		for i := range v {
			l.checkMetadata(v[i], at.join(i))
		}
	case string:
		if !utf8.ValidString(v) {
			l.fail(at, "write text in UTF-8", "metadata have %.60q, which is not UTF-8", v)
		}
	}
}

func (l *loader) checkValue(key string, value any, at path) {
	innerPlace := map[string]string{"descriptors": inDescriptor, "rate_limit": inLimit, "replaces": inReplaces}[key]
	switch v := value.(type) {
	case []any:
		for i, element := range v {
			m, ok := element.(map[any]any)
			if !ok {
				l.fail(at.join(i), "write a map, such as - key: value", "the list has %.60q, which is not a map", fmt.Sprint(element))
				continue
			}
			l.checkKeys(m, at.join(i), innerPlace)
		}
	case map[any]any:
		l.checkKeys(v, at, innerPlace)
	case string, int, bool, nil:
	default:
		l.fail(at, "put it in quotes if it is a string, or write a whole number", "%v has a type that no key takes", v)
	}
}

func (l *loader) addDomain(root *yamlRoot) {
	if root.Domain == "" {
		l.fail(path{"domain"}, "write domain: NAME, with the domain of Envoy's rate limit filter", "the file has no domain")
		return
	}
	d := l.config.domains[root.Domain]
	if d == nil {
		d = &Domain{Name: root.Domain, index: len(l.config.domains)}
		l.config.domains[root.Domain] = d
		l.fileOf[root.Domain] = l.file
	} else if !l.options.MergeDomains {
		l.fail(path{"domain"}, "put both into one file, rename one, or merge the domains of several files (MERGE_DOMAIN_CONFIG)",
			"domain '%s' is in %s already", root.Domain, l.fileOf[root.Domain])
		return
	}
	l.addDescriptors(&d.node, root.Descriptors, path{"descriptors"}, parents{domain: d, path: root.Domain})
}

// parents describe the levels above a list of descriptors.
type parents struct {
	domain          *Domain
	path            string   // domain and composite keys
	keys, values    []string // from the domain down
	isShared        []bool
	isValueInMetric bool
}

// addDescriptors adds a list of descriptors below a node. at is the path of the list in the file.
func (l *loader) addDescriptors(to *node, list []yamlDescriptor, at path, above parents) {
	if len(above.values) >= maxDepth {
		l.fail(at, "use fewer levels", "descriptors are nested deeper than %d levels", maxDepth)
		return
	}
	if to.exact == nil {
		to.exact = make(map[string]*node, len(list))
	}
	for i := range list {
		l.addDescriptor(to, &list[i], at.join(i), above)
	}
	l.warnOfCollisions(to)
}

// addDescriptor adds a descriptor, its rate_limit and the descriptors in it below a node.
func (l *loader) addDescriptor(to *node, y *yamlDescriptor, at path, above parents) {
	if y.Key == "" {
		l.fail(at, "write key: NAME, with the key that Envoy sends", "a descriptor has no key")
		return
	}
	// With aliases, or with long keys above many others, paths are far larger than the files.
	const perLevel = 40 // bytes that a level adds to parents.keys, values and isShared
	isReported := l.allPaths > maxAllPaths
	l.allPaths += len(above.path) + len(y.Key) + len(y.Value) + perLevel*(len(above.keys)+1)
	if l.allPaths > maxAllPaths {
		if !isReported {
			l.fail(at, "use shorter keys and values, or fewer descriptors", "the names of all descriptors together have more than %d MB", maxAllPaths>>20)
		}
		return
	}
	composite := compositeOf(y.Key, y.Value)
	full := above.path + "." + composite
	if other := to.exact[composite]; other != nil {
		l.fail(at, "remove or rename one: key and value are matched as one text, key_value",
			"duplicate descriptor composite key '%s' (the other one is at %s)", full, place(other.file, other.line))
		return
	}
	n := &node{key: y.Key, value: y.Value, isValueInMetric: y.ValueToMetric, file: l.file, line: l.lines.line(at)}
	isWildcard := strings.Contains(composite, "*")
	if y.ShareThreshold {
		if !isWildcard {
			l.fail(at.join("share_threshold"), "write a value with *, or omit share_threshold", "share_threshold needs a value with *, and this descriptor is '%s'", composite)
		}
		n.shared = composite
	}
	below := parents{
		domain: above.domain, path: full, keys: append(slices.Clip(above.keys), y.Key), values: append(slices.Clip(above.values), y.Value),
		isShared: append(slices.Clip(above.isShared), y.ShareThreshold), isValueInMetric: above.isValueInMetric || y.ValueToMetric,
	}
	if y.RateLimit != nil {
		n.limit = l.addLimit(y, at, below)
	}
	to.exact[composite] = n
	to.children = append(to.children, n)
	if isWildcard {
		to.wildcards = append(to.wildcards, wildcard{strings.Split(compositeOf(n.key, n.value), "*"), n})
	}
	l.addDescriptors(n, y.Descriptors, at.join("descriptors"), below)
}

// addLimit adds the rate_limit of a descriptor to the configuration. levels are those from the
// domain down to the descriptor. If the rate_limit is invalid, addLimit reports the errors and
// returns nil.
func (l *loader) addLimit(y *yamlDescriptor, at path, levels parents) *Limit {
	before := len(l.mistakes)
	r, at := y.RateLimit, at.join("rate_limit")
	unit := parseUnit(r.Unit)
	switch {
	case r.Unlimited && unit != UnitUnknown:
		l.fail(at.join("unit"), "remove the unit, or unlimited", "an unlimited rate_limit has a unit")
	case !r.Unlimited && unit == UnitUnknown:
		l.fail(at.join("unit"), "write second, minute, hour, day, week, month or year", "invalid rate limit unit '%s'", r.Unit)
	case !r.Unlimited && r.RequestsPerUnit == 0:
		l.warn(at, "requests_per_unit is 0 or missing, so the limit denies everything")
	}
	limit := &Limit{
		Index: len(l.config.limits), Path: levels.path, RequestsPerUnit: r.RequestsPerUnit, Unit: unit, IsUnlimited: r.Unlimited, Name: r.Name,
		ShadowMode: y.ShadowMode, QuotaMode: y.QuotaMode, DetailedMetric: y.DetailedMetric, ValueToMetric: levels.isValueInMetric, Metadata: metadataOf(y.Metadata),
		File: l.file, Line: l.lines.line(at),
		domain: levels.domain.Name, domainIndex: levels.domain.index, keys: levels.keys, values: levels.values, isShared: levels.isShared,
	}
	for i, one := range r.Replaces {
		switch one.Name {
		case "":
			l.fail(at.join("replaces", i), "write - name: NAME, or remove the entry", "an entry of replaces has no name")
		case r.Name:
			l.fail(at.join("replaces", i), "name another limit", "the limit '%s' replaces itself", r.Name)
		}
		limit.Replaces = append(limit.Replaces, one.Name)
	}
	if len(l.config.limits) >= maxLimits {
		l.fail(at, "remove some of them", "the files have more than %d limits together", maxLimits)
	}
	if len(l.mistakes) > before {
		return nil
	}
	l.config.limits = append(l.config.limits, limit)
	return limit
}

// warnOfCollisions warns of children of n that also match entries with the key of a sibling. Key
// and value are joined by an underscore, so the descriptor a=b_c also matches the entry a_b=c.
func (l *loader) warnOfCollisions(n *node) {
	const longest = 256 // bytes of a composite key; longer ones are not checked
	keys := make(map[string]bool, len(n.children))
	for _, c := range n.children {
		keys[c.key] = true
	}
	for _, c := range n.children {
		composite := compositeOf(c.key, c.value)
		if len(composite) > longest {
			continue
		}
		for i := range len(composite) {
			if len(l.config.warnings) == maxWarnings {
				return
			}
			if composite[i] != '_' {
				continue
			}
			if key := composite[:i]; key != c.key && keys[key] {
				l.config.warnings = append(l.config.warnings, Warning{File: c.file, Line: c.line, Text: fmt.Sprintf(
					"the descriptor '%s' also matches requests with key '%s' and value '%s', because key and value are matched as one text", composite, key, composite[i+1:])})
			}
		}
	}
}

// metadataOf returns metadata with string keys in all maps, as JSON needs them.
func metadataOf(m map[string]any) map[string]any {
	if m == nil {
		return nil
	}
	plain := make(map[string]any, len(m))
	for name, value := range m {
		plain[name] = plainValue(value)
	}
	return plain
}

func plainValue(v any) any {
	switch v := v.(type) {
	case map[any]any:
		plain := make(map[string]any, len(v))
		for k, inner := range v {
			plain[fmt.Sprint(k)] = plainValue(inner)
		}
		return plain
	case []any:
		plain := make([]any, len(v))
		for i := range v {
			plain[i] = plainValue(v[i])
		}
		return plain
	}
	return v
}
