package command

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io/fs"
	"maps"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/testing/eventually"
	"github.com/penstock/penstock/internal/testing/redistest"
)

// operationsTables returns the tables of docs/operations.md, as rows of cells, by the head of their
// first column.
func operationsTables(t *testing.T) map[string][][]string {
	t.Helper()
	text, err := os.ReadFile("../../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	tables := make(map[string][][]string)
	head := ""
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		switch {
		case !strings.HasPrefix(line, "|"):
			head = ""
		case head == "":
			head = cells[0]
		case !strings.HasPrefix(cells[0], "---"):
			tables[head] = append(tables[head], cells)
		}
	}
	return tables
}

var (
	typeLine   = regexp.MustCompile(`(?m)^# TYPE (rate_limiter_\w+) (\w+)$`) // with a name and a type
	seriesLine = regexp.MustCompile(`(?m)^(rate_limiter_\w+)(?:\{(.*)\})? `) // with a name and labels
	labelPair  = regexp.MustCompile(`(\w+)="([^"]*)"`)
)

// served parses /metrics. It returns a row for each series, with its type and labels, and a
// function that returns the values of a label.
func served(t *testing.T, page string) (rows []string, values func(name, label string) []string) {
	types, labels := make(map[string]string), make(map[string]map[string]bool) // by name
	valueSets := make(map[string]map[string]bool)                              // by name and label, with a space between
	for _, m := range typeLine.FindAllStringSubmatch(page, -1) {
		name, kind := m[1], m[2]
		types[name], labels[name] = kind, make(map[string]bool)
	}
	for _, m := range seriesLine.FindAllStringSubmatch(page, -1) {
		name := m[1]
		if types[name] == "" {
			name = name[:strings.LastIndex(name, "_")] // of a histogram, without _bucket, _sum or _count
		}
		if types[name] == "" {
			t.Errorf("the metrics have no TYPE line for %s", m[1])
			continue
		}
		for _, p := range labelPair.FindAllStringSubmatch(m[2], -1) {
			label, value := p[1], p[2]
			if label == "le" { // the bound of a bucket
				continue
			}
			labels[name][label] = true
			at := name + " " + label
			if valueSets[at] == nil {
				valueSets[at] = make(map[string]bool)
			}
			valueSets[at][value] = true
		}
	}
	for name, kind := range types {
		rows = append(rows, fmt.Sprint(name, " ", kind, " ", slices.Sorted(maps.Keys(labels[name]))))
	}
	slices.Sort(rows)
	return rows, func(name, label string) []string { return slices.Sorted(maps.Keys(valueSets[name+" "+label])) }
}

// writeCertificate writes a self-signed certificate and its key, and returns the two files.
func writeCertificate(t *testing.T) (cert, key string) {
	t.Helper()
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, public, private)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	block := func(kind string, der []byte) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
	}
	return writeFile(t, "cert.pem", block("CERTIFICATE", der)), writeFile(t, "key.pem", block("PRIVATE KEY", pkcs8))
}

// scrape reads the metrics of a process. It waits until they have all series about its Redis, of
// which the counts of keys come last, and about another region.
func scrape(t *testing.T, p *process) string {
	t.Helper()
	var page string
	eventually.True(t, "the series rate_limiter_store_rule_keys", func() bool {
		page = mustGet(t, "http://"+p.admin+"/metrics")
		return strings.Contains(page, "\nrate_limiter_store_rule_keys{") && strings.Contains(page, "\nrate_limiter_region_lag_seconds{")
	})
	return page
}

func TestOperationsPageHasTheMetricsThatAreServed(t *testing.T) {
	cert, key := writeCertificate(t)
	eu, us := redistest.Start(t).URL(), redistest.Start(t).URL()
	startProcess(t, "--store="+us, "--region=us", "--region-peers=eu="+eu)
	// A service without these flags has fewer series.
	p := startProcess(t, "--region=eu", "--region-peers=us="+us, "--caller-tls-cert="+cert, "--caller-tls-key="+key, "--admin-listen=127.0.0.1:0", "--api=127.0.0.1:0", "--grpc=127.0.0.1:0", "--resp=127.0.0.1:0", "--store="+eu)
	limited, err := http.Get("http://" + p.listen + "/api/fares/estimate") // a rule has a histogram once it has traffic
	if err != nil {
		t.Fatal(err)
	}
	limited.Body.Close()
	page := scrape(t, p)
	checkMonitoring(t, page)
	rows, values := served(t, page)

	tables := operationsTables(t)
	bare := func(cell string) string { return strings.ReplaceAll(cell, "`", "") }
	var documented []string
	for _, cells := range tables["series"] {
		labels := strings.FieldsFunc(bare(cells[2]), func(r rune) bool { return r == ',' || r == ' ' })
		slices.Sort(labels)
		documented = append(documented, fmt.Sprint(bare(cells[0]), " ", cells[1], " ", labels))
	}
	slices.Sort(documented)
	if !slices.Equal(documented, rows) {
		t.Errorf("docs/operations.md has the series\n%s\nand /metrics has\n%s\nwant the same", strings.Join(documented, "\n"), strings.Join(rows, "\n"))
	}
	counted := len(rows)
	for head, want := range map[string][]string{
		"outcome": values("rate_limiter_requests_total", "outcome"),
		"reason":  values("rate_limiter_errors_total", "reason"),
		"source":  values("rate_limiter_decisions_total", "source"),
	} {
		var documented []string
		for _, cells := range tables[head] {
			documented = append(documented, bare(cells[0]))
		}
		slices.Sort(documented)
		if !slices.Equal(documented, want) {
			t.Errorf("docs/operations.md: the table with the column %s has %v; /metrics has %v", head, documented, want)
		}
		counted += len(want)
	}
	t.Logf("counted: %d series, outcomes and reasons of the docs", counted)
}

// The metrics, log lines and exit statuses on the page exist.
func TestOperationsPageNamesOnlyWhatExists(t *testing.T) {
	text, err := os.ReadFile("../../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	known := make(map[string]bool)
	tables := operationsTables(t)
	for _, cells := range tables["series"] {
		known[strings.Trim(cells[0], "`")] = true
	}
	for _, name := range regexp.MustCompile(`rate_limiter_\w+`).FindAllString(string(text), -1) {
		if !known[name] && !known[strings.TrimSuffix(name, "_bucket")] {
			t.Errorf("docs/operations.md names %s, which is not in its table", name)
		}
	}
	var code strings.Builder
	err = filepath.WalkDir("../internal", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := os.ReadFile(path)
		code.Write(source)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	lines := tables["level"]
	for _, cells := range lines {
		if !strings.Contains(code.String(), strings.Trim(cells[1], "`")) {
			t.Errorf("docs/operations.md: no code logs %s", cells[1])
		}
	}
	for i, cells := range tables["status"] {
		if want := []int{exitOK, exitInternal, exitUsage, exitDenied, exitInvalid, exitUnreachable, exitProblem}[i]; cells[0] != fmt.Sprint(want) {
			t.Errorf("docs/operations.md: exit status %s; want %d", cells[0], want)
		}
	}
	if len(lines) == 0 || len(tables["status"]) != 7 {
		t.Errorf("docs/operations.md has %d lines of the log and %d exit statuses; want some and 7", len(lines), len(tables["status"]))
	}
	t.Logf("counted: %d lines of the log in the docs", len(lines))
}
