package penstock_test

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"

	"github.com/penstock/penstock/internal/testing/effort"
)

// pages returns the texts of all Markdown files of the tree, by path.
func pages(t *testing.T) map[string]string {
	t.Helper()
	skipIfShort(t)
	found := make(map[string]string)
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && path == "bin" { // the Makefile puts what it builds there
			return fs.SkipDir
		}
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".md") {
			return err
		}
		text, err := os.ReadFile(path)
		found[path] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// link matches a link in Markdown. Its group is the target without the anchor.
var link = regexp.MustCompile(`\]\(([^)#]+)[^)]*\)`)

func TestDocsLinkToWhatExists(t *testing.T) {
	for page, text := range pages(t) {
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			target := m[1]
			if strings.Contains(target, "://") {
				continue
			}
			if _, err := os.Stat(filepath.Join(filepath.Dir(page), target)); err != nil {
				t.Errorf("%s links to %s, which cannot be found: %v", page, target, err)
			}
		}
	}
}

var (
	linkToHeading = regexp.MustCompile(`\]\(([^)#:]*)#([^)]+)\)`) // the groups are the page and the anchor
	heading       = regexp.MustCompile(`(?m)^#+ (.*)$`)           // the group is the text
	notInAnchor   = regexp.MustCompile(`[^a-z0-9 _-]`)            // characters that GitHub leaves out
)

// anchorOf returns the anchor that GitHub gives a heading.
func anchorOf(heading string) string {
	return strings.ReplaceAll(notInAnchor.ReplaceAllString(strings.ToLower(heading), ""), " ", "-")
}

func TestDocsLinkToHeadingsThatExist(t *testing.T) {
	effort.SkipUnderRace(t)
	all := pages(t)
	links := 0
	for page, text := range all {
		for _, m := range linkToHeading.FindAllStringSubmatch(text, -1) {
			links++
			target, wantAnchor := page, m[2]
			if path := m[1]; path != "" {
				target = filepath.Join(filepath.Dir(page), path)
			}
			isThere := false
			for _, h := range heading.FindAllStringSubmatch(all[target], -1) {
				isThere = isThere || anchorOf(h[1]) == wantAnchor
			}
			if !isThere {
				t.Errorf("%s links to #%s of %s, which has no such heading", page, wantAnchor, target)
			}
		}
	}
	if links == 0 {
		t.Error("no page links to a heading; want some, so the pattern of links may be wrong")
	}
}

// quotedFile matches a code block that quotes a file. Its groups are the file and the code.
var quotedFile = regexp.MustCompile("(?s)<!-- from (\\S+) -->\n```\\w*\n(.*?)```\n")

func TestDocsQuoteCodeAsItIs(t *testing.T) {
	quotes := 0
	for page, text := range pages(t) {
		for _, m := range quotedFile.FindAllStringSubmatch(text, -1) {
			quotes++
			file, code := m[1], m[2]
			source, err := os.ReadFile(file)
			if err != nil {
				t.Errorf("%s quotes a file that cannot be read: %v", page, err)
			} else if !strings.Contains(string(source), code) {
				t.Errorf("%s quotes %s, which does not contain this code:\n%s", page, file, code)
			}
		}
	}
	if quotes == 0 {
		t.Error("no page quotes code; want some, so the pattern of quotes may be wrong")
	}
}

var (
	// The group is the text of the block.
	shellBlock = regexp.MustCompile("(?s)```sh\n(.*?)```\n")
	// The groups are the target of make and the folder for go run. One of them is empty.
	command = regexp.MustCompile(`^(?:[A-Z_]+=\S+ )*(?:make ([a-z-]+)|go run (\./\S+))$`)
)

// Docs tell readers to run only what CI runs: targets of the Makefile, examples, and lines of
// scripts/run-service. The blocks of README.md and docs/getting-started.md are run as a whole, by
// scripts/run-readme.
func TestDocsNameCommandsThatRun(t *testing.T) {
	makefile, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	service, err := os.ReadFile("scripts/run-service")
	if err != nil {
		t.Fatal(err)
	}
	for page, text := range pages(t) {
		if page == "README.md" || page == filepath.Join("docs", "getting-started.md") {
			continue
		}
		for _, block := range shellBlock.FindAllStringSubmatch(text, -1) {
			for line := range strings.Lines(block[1]) {
				line = strings.TrimSpace(line)
				m := command.FindStringSubmatch(line)
				if m == nil {
					if !strings.Contains(string(service), line) {
						t.Errorf("%s has the command %q; want a make target, an example, or a line of scripts/run-service", page, line)
					}
					continue
				}
				if target := m[1]; target != "" && !regexp.MustCompile(`(?m)^`+target+`:`).Match(makefile) {
					t.Errorf("%s has the command %q, but the Makefile has no target %s", page, line, target)
				}
				if example := m[2]; example != "" {
					if _, err := os.Stat(filepath.Join(example, "main.go")); err != nil {
						t.Errorf("%s has the command %q, but the example has no main.go: %v", page, line, err)
					}
				}
			}
		}
	}
}

// exportedName matches an exported name after the name of its package. Its groups are both names.
var exportedName = regexp.MustCompile(`\b(penstock|memstore|redisstore|algorithm|policy|admission|httplimit|forwardauth|resplimit|outbound|guard|redisguard|ginlimit|echolimit|echov4|fiberlimit|fiberv2|grpclimit|connectlimit)\.([A-Z]\w*)`)

// targetsByHand are the targets that CI does not run by name. They write files, need hours, are
// part of another target, have a test here, or have goals for the server of one system.
var targetsByHand = strings.Fields("help run mutants recipes pictures surge surge-data bench-data outage-data prepare dist format tidy protos schema tools instructions")

func TestCIRunsEachTargetExceptTargetsByHand(t *testing.T) {
	read := func(name string) string {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	var runByCI []string
	for _, m := range regexp.MustCompile(`(?m)^step make (\S+)`).FindAllStringSubmatch(read(".ci/run"), -1) {
		runByCI = append(runByCI, m[1])
	}
	nightly := regexp.MustCompile(`target: \[(.*)\]`).FindStringSubmatch(read(".github/workflows/ci.yml"))
	if nightly == nil {
		t.Fatal("ci.yml has no line \"target: [...]\"; want one with the nightly targets")
	}
	runByCI = append(runByCI, strings.Split(nightly[1], ", ")...)
	targets := targetsOf(read("Makefile"))
	for _, target := range targets {
		if slices.Contains(runByCI, target) == slices.Contains(targetsByHand, target) {
			t.Errorf("make %s must be either in targetsByHand, or in .ci/run or the nightly list of ci.yml; it is in both or in neither", target)
		}
	}
	for _, target := range append(runByCI, targetsByHand...) {
		if !slices.Contains(targets, target) {
			t.Errorf("CI or targetsByHand names the target %s, which the Makefile does not have", target)
		}
	}
}

// targetsOf returns the targets of a Makefile in their order.
func targetsOf(makefile string) (targets []string) {
	for _, m := range regexp.MustCompile(`(?m)^([a-z][a-z -]*):(?:[^=\n].*)?$`).FindAllStringSubmatch(makefile, -1) {
		for target := range strings.FieldsSeq(m[1]) {
			if !slices.Contains(targets, target) {
				targets = append(targets, target)
			}
		}
	}
	return targets
}

func TestMakeHelpListsAllTargetsInTheirOrder(t *testing.T) {
	makefile, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	// tools is part of other targets.
	want := slices.DeleteFunc(targetsOf(string(makefile)), func(target string) bool { return target == "tools" })
	help := output(t, "make", "-s", "help")
	var listed []string
	for _, m := range regexp.MustCompile(`(?m)^([a-z-]+) +\S`).FindAllStringSubmatch(help, -1) {
		listed = append(listed, m[1])
	}
	if !slices.Equal(listed, want) {
		t.Errorf("make help lists the targets %v; want %v, each with a comment that begins with ##", listed, want)
	}
	var words []string
	for _, m := range regexp.MustCompile(`(?m)^## (?:([a-z-]+):)?(.*)$`).FindAllStringSubmatch(string(makefile), -1) {
		words = append(words, strings.Fields(m[1]+" "+m[2])...)
	}
	if printed := strings.Fields(help); !slices.Equal(printed, words) {
		t.Errorf("make help prints %d words; want the %d words of the comments, all in their order:\n%s", len(printed), len(words), help)
	}
}

func TestDocsNameTargetsThatExist(t *testing.T) {
	makefile, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	targets := targetsOf(string(makefile))
	named := make(map[string][]string) // the targets that a page names in its text
	all := pages(t)
	delete(all, "CHANGELOG.md") // it also names what earlier versions had
	for page, text := range all {
		for _, m := range regexp.MustCompile("`make ([a-z-]+)").FindAllStringSubmatch(text, -1) {
			named[page] = append(named[page], m[1])
			if !slices.Contains(targets, m[1]) {
				t.Errorf("%s names make %s, but the Makefile has no such target", page, m[1])
			}
		}
	}
	for _, target := range []string{"run", "test", "help"} {
		if !slices.Contains(named["README.md"], target) {
			t.Errorf("README.md does not name make %s", target)
		}
	}
}

func TestDocsNameWhatIsExported(t *testing.T) {
	effort.SkipUnderRace(t)
	exported := map[string]map[string]bool{
		"penstock": exports(t, "."), "memstore": exports(t, "memstore"),
		"redisstore": exports(t, "redisstore"), "algorithm": exports(t, "algorithm"),
		"policy": exports(t, "policy"), "admission": exports(t, "admission"), "httplimit": exports(t, "httplimit"), "forwardauth": exports(t, "httplimit/forwardauth"), "resplimit": exports(t, "resplimit"), "outbound": exports(t, "httplimit/outbound"), "guard": exports(t, "guard"),
		"redisguard": exports(t, "redisguard"), "ginlimit": exports(t, "httplimit/ginlimit"), "echolimit": exports(t, "httplimit/echolimit"), "echov4": exports(t, "httplimit/echolimit/echov4"),
		"fiberlimit": exports(t, "httplimit/fiberlimit"), "fiberv2": exports(t, "httplimit/fiberlimit/fiberv2"),
		"grpclimit": exports(t, "grpclimit"), "connectlimit": exports(t, "grpclimit/connectlimit"),
	}
	for page, text := range pages(t) {
		for _, m := range exportedName.FindAllStringSubmatch(text, -1) {
			mentioned, pkg, name := m[0], m[1], m[2]
			if !exported[pkg][name] {
				t.Errorf("%s names %s, which does not exist", page, mentioned)
			}
		}
	}
}

// exports returns the names that the package in a folder declares at its top level.
func exports(t *testing.T, dir string) map[string]bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	names := make(map[string]bool)
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for name := range f.Scope.Objects {
			names[name] = true
		}
	}
	return names
}

func TestReadmeStaysShort(t *testing.T) {
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(text), "\n"); n > 150 {
		t.Errorf("README.md has %d lines; want at most 150", n)
	}
}

func TestGlossaryStaysShort(t *testing.T) {
	text := pages(t)[filepath.Join("docs", "glossary.md")]
	terms := make(map[string]bool)
	for _, m := range regexp.MustCompile(`(?m)^\| ([^|]+) \| [^|]+ \|$`).FindAllStringSubmatch(text, -1) {
		term := m[1]
		isHeader := term == "Term" || term == "---"
		if isHeader {
			continue
		}
		if terms[term] {
			t.Errorf("docs/glossary.md has %q twice", term)
		}
		terms[term] = true
	}
	if n := len(terms); n == 0 || n > 50 {
		t.Errorf("docs/glossary.md has %d terms; want 1 to 50", n)
	}
}

// Each walk of docs/architecture.md answers a question of a newcomer with at most four files.
// Another test checks that the files exist.
func TestWalksOpenFewFiles(t *testing.T) {
	text := pages(t)[filepath.Join("docs", "architecture.md")]
	_, walks, _ := strings.Cut(text, "\n## Three walks\n")
	walks, _, _ = strings.Cut(walks, "\n## ")
	walkTexts := strings.Split(walks, "\n### ")[1:]
	for _, walk := range walkTexts {
		title, steps, _ := strings.Cut(walk, "\n")
		opened := regexp.MustCompile(`(?m)^\d\. \[[^]]+\]\([^)]+\)`).FindAllString(steps, -1)
		if len(opened) == 0 || len(opened) > 4 {
			t.Errorf("the walk %q of docs/architecture.md opens %d files; want 1 to 4", title, len(opened))
		}
	}
	if len(walkTexts) != 3 {
		t.Errorf("docs/architecture.md has %d walks; want 3", len(walkTexts))
	}
}

// The table of contents of docs/configuration.md names each section of that page and of the pages
// in docs/configuration. It leaves out the generated list of settings.
func TestConfigurationListsAllItsSections(t *testing.T) {
	all := pages(t)
	contents, _, hasSections := strings.Cut(all[filepath.Join("docs", "configuration.md")], "\n## ")
	if !hasSections {
		t.Fatal("docs/configuration.md has no sections; want some after its table of contents")
	}
	fence := regexp.MustCompile("(?s)```.*?```")
	sections := 0
	for page, text := range all {
		isPart := filepath.Dir(page) == filepath.Join("docs", "configuration")
		if !isPart && page != filepath.Join("docs", "configuration.md") {
			continue
		}
		text, _, _ = strings.Cut(text, "<!-- settings")
		for _, h := range regexp.MustCompile(`(?m)^##+ (.*)$`).FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
			sections++
			title, target := h[1], "#"
			if isPart {
				target = "configuration/" + filepath.Base(page) + "#"
			}
			if !strings.Contains(contents, "["+title+"]("+target) {
				t.Errorf("the table of contents of docs/configuration.md has no link to %q of %s", title, page)
			}
		}
	}
	if sections < 20 {
		t.Errorf("%d sections were found; want at least 20, so the pattern of headings may be wrong", sections)
	}
}

// Longer text belongs under a heading, so that other pages can link to it.
func TestTablesOfConfigurationHaveShortCells(t *testing.T) {
	const maxCharacters = 100
	cells := 0
	for page, text := range pages(t) {
		if !strings.HasPrefix(page, filepath.Join("docs", "configuration")) {
			continue
		}
		for line := range strings.Lines(text) {
			if !strings.HasPrefix(line, "| ") {
				continue
			}
			for _, cell := range strings.Split(line, " | ") {
				cells++
				cell = strings.Trim(cell, "| \n")
				cell = regexp.MustCompile(`\[([^]]*)\]\([^)]*\)`).ReplaceAllString(cell, "$1")
				if n := utf8.RuneCountInString(cell); n > maxCharacters {
					t.Errorf("%s has a cell of %d characters; want at most %d: %s", page, n, maxCharacters, cell)
				}
			}
		}
	}
	if cells == 0 {
		t.Error("no table was found in docs/configuration; want some, so the pattern of cells may be wrong")
	}
}

// searchedFor has words that people search for. The index has each of them, so that readers find
// the right page.
var searchedFor = []string{
	"unblock", "JWT", "brute force", "dry run", "override", "nginx", "Kubernetes", "managed Redis", "sizing", "429", "Retry-After", "burst", "quota",
	"per user", "API key", "CORS", "webhook", "retry storm", "LLM tokens", "bot", "login", "multi-tenant", "sliding window", "token bucket", "leaky bucket",
	"GCRA", "concurrency", "fail open", "circuit breaker", "X-Forwarded-For", "IPv6", "allowlist", "blocklist", "tier", "Envoy", "gRPC", "hot key", "Prometheus",
	"failover", "memory", "TLS", "ACL", "upgrade", "migrate", "WebSocket", "GraphQL", "multi-region", "replace directive", "Spring",
	"unblock a customer", "IP", "tenant", "Lua", "Cluster", "Sentinel", "cold start", "cache", "sidecar", "service mesh", "Istio", "Kong", "Traefik",
}

func TestIndexHasTheWordsThatPeopleUse(t *testing.T) {
	effort.SkipUnderRace(t)
	all := pages(t)
	index := all[filepath.Join("docs", "README.md")]
	for _, word := range searchedFor {
		wordInPage := `(?i)\b` + strings.ReplaceAll(regexp.QuoteMeta(word), " ", "[\\s`]+")
		row := regexp.MustCompile(`(?im)^\| [^|\n]*\b` + regexp.QuoteMeta(word) + `\b[^|\n]*\| ([^|\n]*\]\([^|\n]*)\|$`)
		rows := row.FindAllStringSubmatch(index, -1)
		if len(rows) == 0 {
			t.Errorf("the index docs/README.md has no row with %q and a link", word)
			continue
		}
		// Readers search the page for the word.
		isThere := slices.ContainsFunc(rows, func(row []string) bool {
			links := row[1]
			if strings.Contains(links, "](#") { // a link to a section of the index
				return true
			}
			return slices.ContainsFunc(link.FindAllStringSubmatch(links, -1), func(m []string) bool {
				page := filepath.Join("docs", m[1])
				return regexp.MustCompile(wordInPage).MatchString(all[page])
			})
		})
		if !isThere {
			t.Errorf("the index lists pages for %q, but none of them has this word", word)
		}
	}
}

// queriesOfUsers are searches in users' own words, and the pages that answer them.
var queriesOfUsers = []struct{ query, page string }{
	{"new rule", "configuration/rules.md"},
	{"new password", "howto/new-password.md"},
	{"password rotation", "howto/new-password.md"},
	{"denied customer", "howto/unblock-a-customer.md"},
	{"surge", "howto/surge.md"},
	{"load shedding", "howto/surge.md"},
	{"client certificate", "configuration/server.md#tls_client_ca"},
	{"audit", "operations.md#audit"},
	{"mask", "admin-api.md#how-identities-are-shown"},
	{"backup", "howto/dedicated-redis.md#persistence"},
	{"GeoIP country", "howto/bots-and-scrapers.md#block-known-networks"},
	{"statsd", "observability.md"},
	{"serverless", "check-api.md"},
	{"rollback policy", "howto/upgrades.md#a-new-policy"},
	{"rename rule", "configuration.md#reload"},
	{"include several files", "configuration.md#form-and-bounds"},
	{"penalty", "configuration/limits.md#counting-denied-requests"},
	{"bandwidth", "configuration/cost.md"},
	{"long polling", "configuration/limits.md#concurrency"},
	{"sbom", "install.md#files-of-a-release"},
	{"uninstall", "install.md#uninstall"},
	{"idempotency", "check-api.md#repeats"},
	{"load test", "howto/load-test.md"},
	{"locust", "howto/load-test.md"},
	{"k6", "howto/load-test.md"},
	{"hey", "howto/load-test.md"},
	{"hybrid set-up", "howto/hybrid.md"},
	{"Kong gateway", "howto/hybrid.md"},
	{"brute force login", "howto/login-protection.md"},
	{"who is hitting the limit", "dashboard.md"},
	{"top talkers", "dashboard.md"},
	{"why was I limited", "dashboard.md"},
	{"what happened", "howto/what-happened.md"},
	{"incident timeline", "howto/what-happened.md"},
	{"typescript", "check-api.md#clients"},
	{"express middleware", "check-api.md#middleware-for-web-frameworks"},
	{"fastapi", "check-api.md#middleware-for-web-frameworks"},
	{"spring webflux", "check-api.md#middleware-for-web-frameworks"},
	{"echo v4", "getting-started.md#in-a-go-program"},
	{"fiber v2", "getting-started.md#in-a-go-program"},
	{"terraform", "configuration.md#a-whole-file"},
	{"choose a limit", "howto/how-high.md"},
	{"which algorithm", "algorithms.md"},
	{"count rejected requests", "operations.md#metrics"},
	{"database per-tenant limits", "howto/multi-tenant.md#limits-from-a-database"},
	{"delete all keys of a prefix", "operations.md#all-clients-of-a-rule"},
	{"WATCH", "decisions/0029-a-script-and-not-multi-or-watch.md"},
	{"clock skew", "decisions/0030-the-clock-of-the-store.md"},
	{"429 countdown", "howto/clients-and-429.md"},
	{"rate limit headers", "http-headers.md"},
	{"redis 6", "compatibility.md#what-it-runs-with"},
	{"redis down", "configuration/on-failure.md"},
	{"redis is slow", "doctor.md"},
	{"tokens per minute", "howto/llm-tokens.md"},
	{"alternatives", "comparison.md"},
}

// A row of the index has all words of a query, and its first link leads to the page.
func TestIndexAnswersQueriesOfUsers(t *testing.T) {
	effort.SkipUnderRace(t)
	index := pages(t)[filepath.Join("docs", "README.md")]
	row := regexp.MustCompile(`(?m)^\| ([^|\n]+) \| [^|\n]*?\]\(([^)]+)\)[^|\n]*\|$`) // the groups are the words and the first link
	rows := row.FindAllStringSubmatch(index, -1)
	word := regexp.MustCompile(`[\pL\pN]+`)
	found := 0
	for _, q := range queriesOfUsers {
		isFound := slices.ContainsFunc(rows, func(row []string) bool {
			words, page := word.FindAllString(strings.ToLower(row[1]), -1), row[2]
			return page == q.page && !slices.ContainsFunc(word.FindAllString(strings.ToLower(q.query), -1), func(w string) bool { return !slices.Contains(words, w) })
		})
		if isFound {
			found++
		} else {
			t.Errorf("docs/README.md has no row with all words of %q whose first link is %s", q.query, q.page)
		}
	}
	t.Logf("counted: %d of %d queries of users found in the index", found, len(queriesOfUsers))
}

// Each page can be reached from the index.
func TestIndexLinksToEveryPage(t *testing.T) {
	all := pages(t)
	reached := map[string]bool{}
	next := []string{filepath.Join("docs", "README.md")}
	for len(next) > 0 {
		page := next[0]
		next = next[1:]
		if reached[page] {
			continue
		}
		reached[page] = true
		for _, m := range link.FindAllStringSubmatch(all[page], -1) {
			if target := filepath.Join(filepath.Dir(page), m[1]); strings.HasSuffix(target, ".md") {
				next = append(next, target)
			}
		}
	}
	for page := range all {
		if strings.HasPrefix(page, "docs"+string(filepath.Separator)) && filepath.Base(filepath.Dir(page)) != "decisions" && !reached[page] {
			t.Errorf("no link leads from docs/README.md to %s", page)
		}
	}
}

// Docs set values of the chart by the flag --set of helm. The chart must have these values.
func TestDocsSetValuesOfTheChart(t *testing.T) {
	const file = "deploy/helm/penstock/values.yaml"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var values map[string]any
	if err := yaml.Unmarshal(text, &values); err != nil {
		t.Fatal(err)
	}
	set := 0
	for page, text := range pages(t) {
		for _, m := range regexp.MustCompile(`--set(?:-file|-string)? ([a-zA-Z.]+)=`).FindAllStringSubmatch(text, -1) {
			set++
			at, isThere := any(values), true
			for name := range strings.SplitSeq(m[1], ".") {
				object, _ := at.(map[string]any)
				if at, isThere = object[name]; !isThere {
					break
				}
			}
			// The chart's defaults have only some of the settings.
			if !isThere && !strings.HasPrefix(m[1], "settings.") {
				t.Errorf("%s sets %s, which %s does not have", page, m[1], file)
			}
		}
	}
	if set == 0 {
		t.Error("no page sets a value of the chart; want some, so the pattern of --set may be wrong")
	}
}
