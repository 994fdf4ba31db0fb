package policyfile

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io/fs"
	"os"
	"slices"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/boundedfile"
	"github.com/penstock/penstock/internal/fieldvalues"
	"github.com/penstock/penstock/internal/panicked"
	"github.com/penstock/penstock/internal/policy/jwt"
	"github.com/penstock/penstock/internal/wording"
	"github.com/penstock/penstock/policy"
)

// Options define what a file may contain besides the policy itself. The zero value is useful.
type Options struct {
	// Sections are the parts of the file that other packages use, with their defaults. A file with
	// another section is invalid. Default: none.
	Sections []Section

	// Algorithms are further algorithms for limits, named by their titles. Default: none.
	Algorithms []*algorithm.Algorithm

	// Ignore names sections that are not read, because they belong to other programs, such as server,
	// which belongs to penstock serve. Default: none.
	Ignore []string

	// Check rejects rules that the program cannot enforce. Parse and Load return its error.
	// Default: none.
	Check func(*policy.Rules) error
}

// A Policy is the Rules of a file, with facts about the file.
type Policy struct {
	Rules    *policy.Rules
	Files    []string // the policy's own file, then the files that it names
	Warnings []*Error // about parts that are valid, but may not be intended
	Hints    []*Error // about parts that are probably intended, but have an effect that authors should know

	// Digest identifies the policy: the first 12 hex digits of a SHA-256. The hash covers the policy's
	// file, then each file of values in the order in which they are read. It covers neither
	// variables nor token keys. Digest is "" if the policy was not read from a text.
	Digest string

	verifier *jwt.Verifier // nil without tokens
}

// digestSize is the length of a Digest before it is written in hex, in bytes.
const digestSize = 6

// Start begins to read the keys at jwks_url, and waits at most two seconds for the first response.
// Without jwks_url it does nothing. After each read, it calls report with the error, or nil. report
// may be nil. Before the first successful read, no token is valid.
func (p *Policy) Start(report func(error)) {
	if p.verifier != nil {
		p.verifier.Start(report)
	}
}

// Close stops reading keys. The Rules keep working with the keys that they have.
func (p *Policy) Close() {
	if p.verifier != nil {
		p.verifier.Close()
	}
}

// Load reads and compiles a policy from a YAML file, with the variables of the process. File names
// in it are relative to its folder. A panic while the file is read becomes an error.
func Load(path string, o Options) (*Policy, error) {
	return panicked.Try("policy: load "+path, func() (*Policy, error) { return load(path, o) })
}

func load(path string, o Options) (*Policy, error) {
	text, err := boundedfile.Read(path, boundedfile.MaxPolicy)
	if errors.As(err, new(*fs.PathError)) {
		return nil, fmt.Errorf("%w: policy: %w; write the name of a policy file that can be read", penstock.ErrInvalid, err)
	} else if err != nil {
		return nil, fmt.Errorf("%w: policy: %w", penstock.ErrInvalid, err)
	}
	return Parse(path, text, os.LookupEnv, o)
}

// Parse compiles the text of a policy. The name is the file's name, for messages. File names in the
// text are relative to the folder of name. Parse replaces ${NAME} and ${NAME:-default} by the
// variable NAME of env, and $$ by a dollar sign. If env is nil, it replaces nothing. If the policy
// has mistakes, the error is Errors: every mistake, with its position.
func Parse(name string, text []byte, env func(string) (string, bool), o Options) (*Policy, error) {
	// compile also checks what could be read of a text with mistakes. Its error includes those of
	// parse.
	config, _ := parse(name, text, env, o)
	return config.compile()
}

const (
	maxRules        = 10_000
	maxCombinations = 100_000 // combinations of a path and a host, in all rules
)

// compile checks the whole policy and makes Rules from it. If the policy has mistakes, the error is
// Errors: every mistake, with its position. If it has none, compile returns an error of policy.New
// or Options.Check as it is.
func (config *policyConfig) compile() (*Policy, error) {
	c := newCompiler(config)
	c.compile()
	p := &Policy{Files: c.files, verifier: c.verifier}
	err := c.err()
	if err == nil {
		for i, r := range c.spec.Rules {
			r.Always = config.Rules[i].Always // New adds the rules that always apply for another reason
		}
		p.Rules, err = policy.New(c.spec)
	}
	if check := config.options.Check; err == nil && check != nil {
		err = check(p.Rules)
	}
	if err != nil {
		p.Close()
		return nil, err
	}
	p.Warnings, p.Hints = c.warnings.sorted().merged().bounded(), c.hints.sorted().bounded()
	if c.text != nil {
		p.Digest = hex.EncodeToString(c.digest.Sum(nil)[:digestSize])
	}
	return p, nil
}

// A compiler turns a policyConfig into a Spec. After a mistake it continues, to find them all.
type compiler struct {
	*reporter
	config              *policyConfig
	spec                policy.Spec
	verifier            *jwt.Verifier
	files               []string
	warnings            Errors
	hints               Errors
	digest              hash.Hash                       // of the policy's text and the files of values
	algorithms          map[string]*algorithm.Algorithm // by the words that name them
	identities          map[string]*identityState
	identityNotes       map[*policy.Identity]identityNote
	byFirstSegment      map[string][]*placedMatcher // by the first segment of their paths, the most specific first
	startingWithPattern []*placedMatcher            // matchers whose paths begin with a pattern, the most specific first
	comparisons         int                         // how many pairs of matchers anyMatcher has compared
	combinations        int                         // the combinations of a path and a host in the rules compiled so far
	listFileCount       int                         // files of values that were read
	listLineCount       int                         // the lines of all these files
	listByteCount       int                         // the bytes of all these files
	defaultOnFailure    guard.FailureMode           // the default of all limits
}

func newCompiler(config *policyConfig) *compiler {
	r := config.reporter
	if r == nil {
		r = newReporter("policy")
	}
	digest := sha256.New()
	digest.Write(r.text)
	return &compiler{reporter: r, config: config, spec: policy.Spec{Name: r.file}, files: []string{r.file}, digest: digest,
		identities: make(map[string]*identityState), identityNotes: make(map[*policy.Identity]identityNote)}
}

func (c *compiler) compile() {
	c.algorithms = c.knownAlgorithms(c.config.options.Algorithms)
	if c.config.Version != 1 && (c.config.Version != 0 || c.isWritten(&c.config.Version)) {
		c.fail(&c.config.Version, "version %d of the format is not known; write version: 1", c.config.Version)
	}
	c.defaultOnFailure = c.compileOnFailure(&c.config.OnFailure)
	c.spec.ApplyAll = c.checkWord(&c.config.Apply, "apply", fieldvalues.Apply) == "all"
	c.compileSections()
	c.compileTokens()
	c.compileIdentities()
	c.compileTiers()
	c.spec.Allow = c.compileConditions(&c.config.Allow, "allow")
	c.warnChosen(&c.config.Allow, "evade all limits")
	c.spec.Deny = c.compileConditions(&c.config.Deny, "deny")
	c.compileRules()
}

// checkWord checks that the value of a field is one of a few words, and returns it. The first word
// is the default.
func (c *compiler) checkWord(p *string, field string, words []string) string {
	if *p == "" {
		return words[0]
	}
	if !slices.Contains(words, *p) {
		c.fail(p, "unknown value %q for %s; %s", wording.Clip(*p), field, suggestOf(*p, words))
	}
	return *p
}

func (c *compiler) warn(p any, format string, args ...any) {
	c.warnings = append(c.warnings, c.newError(c.positions[p], format, args...))
}

func (c *compiler) hint(p any, format string, args ...any) {
	c.hints = append(c.hints, c.newError(c.positions[p], format, args...))
}

// placeOf returns the pointer at which to report a mistake of the value that p points to. If the
// value was written, the result is p. If not, the result is within, a pointer to the value that
// contains the value of p.
func (c *compiler) placeOf(within, p any) any {
	if c.isWritten(p) {
		return p
	}
	return within
}
