package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/penstock/penstock/cmd/penstock/internal/rpc/envoyconfig"
)

// filesPerRequest is how many files the loader section compares for each request of the flag
// -requests.
const filesPerRequest = 2

// The outcomes of which every run has some.
const (
	bothLoad   = "both load the file"
	bothReject = "both reject the file"
)

// compareLoaders compares which configuration files the two services load, and which limits they
// find. Each file is a random configuration with up to three random changes.
func (p *program) compareLoaders() error {
	peer, err := startLoader(filepath.Join(p.oracle.dir, "ratelimit"))
	if err != nil {
		return err
	}
	defer peer.stop()
	var t tally
	mismatches := 0
	for number := range p.requests * filesPerRequest {
		if p.onlyDomain >= 0 && number != p.onlyDomain {
			continue
		}
		text := newFile(rand.New(rand.NewPCG(p.seed, uint64(number))))
		theirs, err := peer.load(text)
		if err != nil {
			return fmt.Errorf("file %d of seed %d: %w\n%s", number, p.seed, err, text)
		}
		ours := loadFile(text)
		t.add("files", 1)
		outcome, isExpected := compareLoaded(theirs, ours)
		t.add(outcome, 1)
		if !isExpected {
			mismatches++
			fmt.Printf("\n%s; replay: -only loader -seed %d -domain %d\n%s\nenvoyproxy/ratelimit: %s\n%spenstock: %s\n%s",
				outcome, p.seed, number, text, theirs.Error, theirs.Limits, ours.Error, ours.Limits)
		}
		if mismatches >= maxMismatches {
			break
		}
	}
	fmt.Print(&t)
	if mismatches > 0 {
		return fmt.Errorf("%d mismatches; replay with -seed %d", mismatches, p.seed)
	}
	for _, name := range []string{bothLoad, bothReject} {
		if p.onlyDomain < 0 && t.counts[name] == 0 {
			return errors.New("no file had this outcome: " + name)
		}
	}
	return nil
}

type loadResult struct {
	Error  string // "": the loader accepts the file
	Limits string // as the services list them at /rlconfig
}

// compareLoaded compares the results of envoyproxy/ratelimit and of Penstock for one file, and
// names the outcome. isExpected is true if the results are equal.
func compareLoaded(theirs, ours loadResult) (outcome string, isExpected bool) {
	switch {
	case theirs.Error != "" && ours.Error != "":
		return bothReject, true
	case theirs.Error != "":
		return "only penstock loads the file", false
	case ours.Error != "":
		return "only envoyproxy/ratelimit loads the file", false
	case !slices.Equal(sortedLines(theirs.Limits), sortedLines(ours.Limits)):
		return "the limits differ", false
	}
	return bothLoad, true
}

func sortedLines(text string) []string { return slices.Sorted(strings.Lines(text)) }

func loadFile(text string) loadResult {
	config, err := envoyconfig.Load([]envoyconfig.File{{Name: "file", Content: []byte(text)}}, envoyconfig.Options{})
	if err != nil {
		return loadResult{Error: err.Error()}
	}
	return loadResult{Limits: config.String()}
}

// A peerLoader is the loader of envoyproxy/ratelimit, in a process of its own.
type peerLoader struct {
	cmd     *exec.Cmd
	stdin   io.WriteCloser
	encoder *json.Encoder // to stdin
	decoder *json.Decoder // from stdout
}

func startLoader(program string) (*peerLoader, error) {
	l := &peerLoader{cmd: exec.Command(program)}
	var err error
	if l.stdin, err = l.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := l.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	l.encoder, l.decoder = json.NewEncoder(l.stdin), json.NewDecoder(bufio.NewReader(stdout))
	return l, l.cmd.Start()
}

func (l *peerLoader) load(text string) (result loadResult, err error) {
	if err := l.encoder.Encode([]byte(text)); err != nil {
		return loadResult{}, err
	}
	err = l.decoder.Decode(&result)
	return result, err
}

func (l *peerLoader) stop() {
	l.stdin.Close()
	_ = l.cmd.Wait()
}

func newFile(r *rand.Rand) string {
	text := newDomain(r, "d").yaml(r)
	if chance(r, 4) {
		text = pick(r, oddFiles)
	}
	for range r.IntN(4) {
		text = changeFile(r, text)
	}
	return text
}

// oddFiles use features of YAML beyond plain maps.
var oddFiles = []string{
	"",
	"domain: d",
	"domain: d\ndescriptors:",
	"domain: d\ndescriptors: []",
	"domain: d\ndescriptors:\n- key: k\n  rate_limit: &a\n    unit: day\n    requests_per_unit: 5\n- key: l\n  rate_limit: *a\n- key: m\n  rate_limit:\n    <<: *a\n    requests_per_unit: 6\n",
	"domain: d\ndescriptors:\n- &a\n  key: k\n  rate_limit: {unit: hour, requests_per_unit: 1}\n- <<: *a\n  value: v\n- <<: *a\n  value: w\n  descriptors: [{key: x, rate_limit: {unit: minute}}]\n",
	"domain: d\ndescriptors:\n- key: k\n  rate_limit: {unit: second, requests_per_unit: 010}\n---\ndomain: e\n",
	"{domain: d, descriptors: [{key: k, value: 2001-01-01, rate_limit: {unit: week, requests_per_unit: 0x10}}]}",
	"%YAML 1.1\n---\ndomain: d\ndescriptors:\n- {key: k, value: on, rate_limit: {unit: Day, requests_per_unit: 1_000}}\n...\n",
	"domain: d\ndescriptors:\n- key: k\n  value: 7\n  metadata: {a: 1.5, b: [1, x]}\n  rate_limit: {unit: day, requests_per_unit: 5}\n",
	"domain: d\ndescriptors:\n- key: |\n    k\n  value: >\n    v\n    w\n  rate_limit: {unit: year, requests_per_unit: 5}\n",
	"domain: d\ndescriptors:\n- key: k\n  value: foo*bar\n  share_threshold: true\n  rate_limit: {unit: day, requests_per_unit: 5}\n",
	"\"domain\": \"d\\u00e9\"\n? descriptors\n: - key: !!str 5\n    rate_limit: {unlimited: yes, name: a, replaces: [{name: b}]}\n",
	"domain: d\ndescriptors:\n- key: k\n  shadow_mode: true\n  rate_limit:\n    unit: day\n    shadow_mode: true\n    requests_per_unit: 5\n",
	"domain: d\ndescriptors:\n  key: k\n",
	"- domain: d\n",
	"d",
	"\ufeffdomain: d\n",
	"domain: d\r\ndescriptors:\r\n- key: k\r\n  rate_limit:\r\n    unit: day\r\n    requests_per_unit: 1\r\n",
}

// oddScalars replace the values of fields.
var oddScalars = []string{
	"", "~", "null", "-1", "0", "1", "1.0", "1.5", "1e3", "0x10", "010", "0o10", "1_000", "4294967295", "4294967296", "18446744073709551615", "18446744073709551616",
	"true", "yes", "off", "'true'", "2001-01-01", "12:30:45", ".inf", ".nan", "[]", "{}", "[a]", "[{}]", "[{name: one}]", "{name: one}", "''", "\"\"", "\"\\x00\"",
	"second", "WEEK", "Unknown", "decade", "unknown", "!!str 1", "!!int '1'", "!!float 1", "!!binary aGk=", "!x y", "&a v", "*a", "x*", "x*y", "'*'", "a b", "@x", "`x", "k: v", "# none", "|", "\u00e9", "\t1",
}

// oddKeys replace the names of fields.
var oddKeys = []string{
	"domain", "key", "value", "descriptors", "rate_limit", "unit", "requests_per_unit", "unlimited", "shadow_mode", "quota_mode", "name", "replaces",
	"detailed_metric", "value_to_metric", "share_threshold", "metadata", "unit_multiplier", "limit", "Key", "1", "true", "1.5", "~", "<<", "[a]", "{a: b}", "\"key\"", "!!str key",
}

func changeFile(r *rand.Rand, text string) string {
	lines := strings.Split(text, "\n")
	at := r.IntN(len(lines))
	line := lines[at]
	indent := line[:len(line)-len(strings.TrimLeft(line, " -"))] // with the dash of a list
	key, value, _ := strings.Cut(line[len(indent):], ":")
	switch r.IntN(10) {
	case 0: // remove a line
		return strings.Join(slices.Delete(lines, at, at+1), "\n")
	case 1: // repeat a line
		return strings.Join(slices.Insert(lines, at, line), "\n")
	case 2: // indent it more
		lines[at] = "  " + line
	case 3: // indent it less
		lines[at] = strings.TrimPrefix(line, " ")
	case 4, 5: // another value
		lines[at] = indent + key + ": " + pick(r, oddScalars)
	case 6: // another key
		lines[at] = indent + pick(r, oddKeys) + ":" + value
	case 7: // insert a line
		inserted := strings.ReplaceAll(indent, "-", " ") + pick(r, oddKeys) + ": " + pick(r, oddScalars)
		return strings.Join(slices.Insert(lines, at, inserted), "\n")
	case 8: // swap two lines
		other := r.IntN(len(lines))
		lines[at], lines[other] = lines[other], lines[at]
	case 9: // insert some bytes, or replace a byte by them
		if len(text) == 0 {
			return text
		}
		i := r.IntN(len(text))
		inserted := pick(r, []string{"", " ", "\n", "\t", ":", "-", "*", "&a ", "'", "\"", "#", "{", "]", "\x00", "\xff", "\u2028", "---\n", "%"})
		replaced := r.IntN(2) // number of bytes
		return text[:i] + inserted + text[i+replaced:]
	}
	return strings.Join(lines, "\n")
}
