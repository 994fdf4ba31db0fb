package policy

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
)

// Load reads and compiles a policy from a YAML file, with the variables of the process. Names of
// files in it are relative to its folder. If this package panics while it reads the file, Load
// returns a *PanicError.
func Load(path string) (*Rules, error) {
	return recovered("load "+path, func() (*Rules, error) { return load(path) })
}

func load(path string) (*Rules, error) {
	text, err := readFile(path, MaxFile)
	if err != nil {
		return nil, fmt.Errorf("%w: policy: %w", penstock.ErrInvalid, err)
	}
	config, parsed := Parse(path, text, os.LookupEnv)
	if parsed == nil {
		return config.Compile()
	}
	// Compile what could be read, so that all mistakes are reported together.
	rules, err := config.Compile()
	if err == nil {
		rules.Close()
		return nil, parsed
	}
	return nil, err
}

var errLonger = errors.New("is longer")

// readFile reads a regular file: to open another, as a pipe, may last for ever.
func readFile(path string, most int64) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.IsDir() {
		return nil, fmt.Errorf("%s is a folder; name a file", path)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no regular file; name one", path)
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, most+1))
	if err == nil && int64(len(text)) > most {
		err = fmt.Errorf("%s %w than %d bytes; split it", path, errLonger, most)
	}
	return text, err
}

// What a policy may have at most.
const (
	maxRules  = 10_000
	maxWays   = 100_000             // in which rules match: each path at each host
	maxLimits = penstock.MaxCharges // that are charged together
)

// Compile checks the whole policy and makes Rules of it. The error is Errors: every mistake, with
// its position.
func (config *Config) Compile() (*Rules, error) {
	c := newCompiler(config)
	c.compile()
	if err := c.err(); err != nil {
		c.rules.Close()
		return nil, err
	}
	return c.rules, nil
}

// A compiler turns a Config into Rules, and goes on after a mistake.
type compiler struct {
	*source
	config     *Config
	rules      *Rules
	digest     hash.Hash // of what was read
	identities map[string]*identityState
	payers     int
	ways       int // in which rules match
	listLines  int // read from files of values, listFiles of them with listBytes
	listFiles  int
	listBytes  int
	onFailure  guard.Failure
}

func newCompiler(config *Config) *compiler {
	s := config.source
	if s == nil {
		s = newSource("policy")
	}
	digest := sha256.New()
	digest.Write(s.text)
	return &compiler{source: s, config: config, digest: digest, rules: &Rules{name: s.file, files: []string{s.file}}, identities: make(map[string]*identityState)}
}

func (c *compiler) compile() {
	if c.config.Version != 1 && (c.config.Version != 0 || c.written(&c.config.Version)) {
		c.fail(&c.config.Version, "version %d of the format is not known; write version: 1", c.config.Version)
	}
	c.onFailure = c.failure(&c.config.OnFailure)
	c.rules.all = c.oneOf(&c.config.Apply, "apply", "most-specific", "all") == "all"
	c.http()
	c.server()
	c.tokens()
	c.names()
	c.tiers()
	c.rules.allow = c.conditions(&c.config.Allow, "allow")
	c.rules.deny = c.conditions(&c.config.Deny, "deny")
	c.ruleList()
	c.rules.payers = c.payers
	c.rules.keepSettings()
	c.rules.warnings = c.rules.warnings.sorted().few()
	if c.text != nil {
		c.rules.digest = hex.EncodeToString(c.digest.Sum(nil)[:6])
	}
}

// oneOf is a word out of a few; the first is the default.
func (c *compiler) oneOf(p *string, what string, words ...string) string {
	if *p == "" {
		return words[0]
	}
	if !slices.Contains(words, *p) {
		c.fail(p, "%q has no meaning for %s; %s", clip(*p), what, suggestOf(*p, words))
	}
	return *p
}

func (c *compiler) warn(p any, format string, args ...any) {
	at := c.at[p]
	c.rules.warnings = append(c.rules.warnings, &Error{File: c.file, Line: at.line, Column: at.column, Message: c.mask.apply(fmt.Sprintf(format, args...))})
}

// path is a file's name, relative to the policy's folder.
func (c *compiler) path(name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(filepath.Dir(c.file), name)
}

// orWritten is p if it was written, to show a mistake there, and else what it is in.
func (c *compiler) orWritten(within, p any) any {
	if c.written(p) {
		return p
	}
	return within
}

func nameLike(s string) bool {
	for _, b := range []byte(s) {
		if !(b >= 'a' && b <= 'z' || b >= '0' && b <= '9' || b == '_' || b == '.' || b == '-') {
			return false
		}
	}
	return len(s) >= 1 && len(s) <= 64
}
