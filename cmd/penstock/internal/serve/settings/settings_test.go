package settings

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/fieldvalues"
	"github.com/penstock/penstock/policy/policyfile"
)

// A sample has a value of one setting for each source.
type sample struct{ flag, environment, file string }

// samples has a sample for each setting. Its values differ from the default where the setting has
// enough values.
var samples = map[string]sample{
	"config":          {"a.yaml", "b.yaml", ""},
	"listen":          {":1001", ":1002", ":1003"},
	"upstream":        {"http://a:1", "http://b:2", "http://c:3"},
	"preserve-host":   {"true", "true", "true"},
	"demo":            {"true", "true", ""},
	"demo-traffic":    {"true", "true", ""},
	"store":           {"redis://a", "redis://b", "redis://c"},
	"prefix":          {"a", "b", "c"},
	"key-hash-secret": {"aa", "bb", "cc"},
	"require-store":   {"true", "true", "true"},
	"store-timeout":   {"1s", "2s", "3s"},
	"min-instances":   {"1", "2", "3"},
	"admin-listen":    {"127.0.0.1:1", "off", "0.0.0.0:3"},

	"region":          {"eu", "us", "ap"},
	"region-peers":    {"us=redis://a", "eu=redis://b", "eu=redis://c,us=redis+sentinel://d,e/main"},
	"region-interval": {"2s", "3s", "4s"},
	"region-delay":    {"1s", "2s", "0"},

	"api":                   {"127.0.0.1:1", "unix:/run/a.sock", ":3"},
	"grpc":                  {"127.0.0.1:1", "unix:/run/a.sock", ":3"},
	"resp":                  {"127.0.0.1:1", "unix:/run/a.sock", ":3"},
	"api-without-tls":       {"true", "true", "true"},
	"envoy-config":          {"a", "b/c", "/d"},
	"envoy-xds":             {"a:1", "b:2", "c:3"},
	"envoy-xds-node":        {"a", "b", "c"},
	"envoy-xds-metadata":    {"a=1", "b=2", "c=3,d=4"},
	"envoy-xds-ca":          {"a.pem", "b.pem", "c.pem"},
	"envoy-xds-cert":        {"a.pem", "b.pem", "c.pem"},
	"envoy-xds-key":         {"a.pem", "b.pem", "c.pem"},
	"envoy-xds-server-name": {"a", "b", "c"},
	"envoy-mode":            {"exact", "atomic", "exact"},
	"envoy-algorithm":       {"token-bucket", "sliding-window", "sliding-log"},
	"envoy-reports":         {"spend", "force", "spend"},
	"envoy-on-failure":      {"local", "open", "error"},
	"envoy-headers":         {"plain", "draft-03", "draft-11"},
	"envoy-metadata":        {"true", "true", "true"},
	"envoy-shadow-mode":     {"true", "true", "true"},
	"envoy-quota-mode":      {"true", "true", "true"},
	"envoy-merge-domains":   {"true", "true", "true"},
	"envoy-xds-optional":    {"true", "true", "true"},
	"caller-token":          {"0123456789abcdef", "fedcba9876543210", "aaaaaaaaaaaaaaaa"},
	"operator-token":        {"0123456789abcdeg", "gedcba9876543210", "bbbbbbbbbbbbbbbb"},
	"allow-caller-limits":   {"true", "true", "true"},
	"allow-open-callers":    {"true", "true", "true"},
	"caller-tls-cert":       {"a.pem", "b.pem", "c.pem"},
	"caller-tls-key":        {"a.pem", "b.pem", "c.pem"},
	"caller-client-ca":      {"a.pem", "b.pem", "c.pem"},

	"admin-tls-cert":   {"a.pem", "b.pem", "c.pem"},
	"admin-tls-key":    {"a.pem", "b.pem", "c.pem"},
	"admin-client-ca":  {"a.pem", "b.pem", "c.pem"},
	"shown-identities": {"off", "full", "off"},
	"near-limit":       {"50", "90", "100"},

	"pprof":         {"true", "true", "true"},
	"tls-cert":      {"a.pem", "b.pem", "c.pem"},
	"tls-key":       {"a.pem", "b.pem", "c.pem"},
	"tls-client-ca": {"a.pem", "b.pem", "c.pem"},

	"header-timeout":           {"1s", "2s", "3s"},
	"stall-timeout":            {"1s", "2s", "0"},
	"min-body-rate":            {"1KB", "2 KB", "0"},
	"idle-timeout":             {"1s", "2s", "3s"},
	"upstream-connect-timeout": {"1s", "2s", "3s"},
	"upstream-header-timeout":  {"1s", "2s", "0"},
	"drain-delay":              {"1s", "2s", "3s"},
	"drain-timeout":            {"1s", "2s", "0"},
	"max-header":               {"1KB", "2KB", "3000"},
	"max-body":                 {"1MB", "2GB", "3b"},
	"max-connections":          {"1", "2", "3"},
	"log-format":               {"json", "json", "json"},
	"log-level":                {"debug", "warn", "error"},
	"denial-log":               {"off", "all", "off"},
	"audit-file":               {"a.json", "b.json", "c.json"},
}

func TestSettingsComeFromFlagElseEnvironmentElseFileElseDefault(t *testing.T) {
	tried := 0
	var want Settings
	wantRows := want.rows()
	for i, row := range Table {
		values, ok := samples[row.Name]
		if !ok {
			t.Fatalf("setting %s has no sample values in this test", row.Name)
		}
		for sources := range 8 { // a bit for each source
			hasFlag := sources&4 != 0
			hasEnv := sources&2 != 0
			hasFile := sources&1 != 0 && !row.IsNotInFile
			from := Sources{Flags: map[string]string{}, File: func(string) (*Section, error) {
				if hasFile {
					return sectionWith(row.Key(), values.file), nil
				}
				return new(Section), nil
			}}
			if row.Name != "config" {
				from.Flags["config"] = "p.yaml"
			}
			text, source := row.Default, "default"
			if hasFile {
				text, source = values.file, "server."+row.Key()+" in p.yaml"
			}
			if hasEnv {
				from.Environ = []string{row.Env() + "=" + values.environment}
				text, source = values.environment, row.Env()
			}
			if hasFlag {
				from.Flags[row.Name] = values.flag
				text, source = values.flag, "--"+row.Name
			}
			s, _ := Load(from) // the error only reports values that do not fit together
			if got := s.given[row.Name]; got.text != text || s.Source(row.Name) != source {
				t.Errorf("setting %s, in a flag: %t, in the environment: %t, in the file: %t, is %q from %s; want %q from %s",
					row.Name, hasFlag, hasEnv, hasFile, got.text, got.source, text, source)
			}
			want = Settings{}
			if text != "" {
				if err := wantRows[i].set(text); err != nil {
					t.Fatalf("the sample %q of setting %s is invalid: %v", text, row.Name, err)
				}
			}
			isZero := text == "off" || text == "0"
			if text != row.Default && !isZero && reflect.DeepEqual(want, Settings{}) {
				t.Errorf("setting %s: the value %q changes no field of Settings", row.Name, text)
			}
			tried++
		}
	}
	t.Logf("counted: %d combinations of sources of a setting", tried)
}

// sectionWith makes a section that has only this key.
func sectionWith(key, text string) *Section {
	return &Section{fieldvalues.Texts{Values: map[string]*string{key: &text}}}
}

// The section of a file accepts the words and numbers of YAML. For true and false, a flag accepts
// more words.
func TestFilesAreReadLikeFlags(t *testing.T) {
	for _, c := range []struct{ key, text, want string }{
		{"pprof", "true", ""},
		{"pprof", "1", `pprof "1": it is neither true nor false`},
		{"pprof", "yes", `pprof "yes": it is neither true nor false`},
		{"max_connections", "1_000", ""},
		{"max_connections", "1000001", `max_connections "1000001": it is out of bounds; write a whole number from 1 to 1000000`},
		{"max_connections", "many", `max_connections "many": it is not a whole number`},
		{"log_level", "loud", `log_level "loud": it is unknown; write debug or info`},
		{"caller_token", "short", `caller_token: it can be guessed`},
	} {
		section := sectionWith(c.key, c.text)
		var got string
		section.Apply(nil, func(field any, format string, args ...any) {
			if field != section.Values[c.key] {
				t.Errorf("%s: the mistake is reported at another field", c.key)
			}
			got += fmt.Sprintf(format, args...)
		})
		if c.want == "" && got != "" || !strings.Contains(got, c.want) {
			t.Errorf("with %s: %s the mistake is %q; want %q", c.key, c.text, got, c.want)
		}
	}
	s, err := Load(Sources{Flags: map[string]string{"config": "p.yaml", "demo": "true"}, File: func(string) (*Section, error) {
		return sectionWith("max_connections", "1_000"), nil
	}})
	if err != nil || s.MaxConnections != 1000 {
		t.Errorf("max_connections 1_000 is read as %d, %v; want 1000", s.MaxConnections, err)
	}
}

func TestSchemaHasTheTypesAndDefaultsOfSettings(t *testing.T) {
	var schema struct {
		Properties struct {
			Server struct {
				Properties map[string]struct{ Description string }
			}
		}
	}
	if err := json.Unmarshal(Schema(), &schema); err != nil {
		t.Fatal(err)
	}
	for _, row := range Table {
		p, ok := schema.Properties.Server.Properties[row.Key()]
		if ok == row.IsNotInFile {
			t.Errorf("%s is in the schema: %v; want %v", row.Key(), ok, !row.IsNotInFile)
		}
		if ok && row.Default != "" && !strings.Contains(p.Description, "Default: "+row.Default+".") {
			t.Errorf("the default of %s is %s, but the description in the schema is %q", row.Key(), row.Default, p.Description)
		}
	}
}

func TestNoVariableIsSetByKubernetes(t *testing.T) {
	for _, row := range Table {
		for _, prefix := range []string{"PENSTOCK_PORT", "PENSTOCK_SERVICE_"} {
			if strings.HasPrefix(row.Env(), prefix) {
				t.Errorf("the variable %s has the prefix %s, which Kubernetes uses for a service called penstock", row.Env(), prefix)
			}
		}
	}
}

// load loads settings for the demo, unless the flags have an upstream.
func load(flags map[string]string, environ ...string) (Settings, error) {
	if flags["upstream"] == "" && flags["demo"] == "" {
		flags["demo"] = "true"
	}
	return Load(Sources{Flags: flags, Environ: environ})
}

func TestVariablesOfPlatformsAreUsed(t *testing.T) {
	for _, c := range []struct{ environ, setting, want, source string }{
		{environ: "PORT=3000", setting: "listen", want: ":3000", source: "PORT"},
		{environ: "PORT=3000 PENSTOCK_LISTEN=:4000", setting: "listen", want: ":4000", source: "PENSTOCK_LISTEN"},
		{environ: "REDIS_URL=redis://r:1", setting: "store", want: "redis://r:1", source: "REDIS_URL"},
		{environ: "REDIS_HOST=localhost REDIS_PORT=6380", setting: "store", want: "redis://localhost:6380", source: "REDIS_HOST"},
		{environ: "REDIS_HOST=::1", setting: "store", want: "redis://[::1]:6379", source: "REDIS_HOST"},
		{environ: "REDIS_HOST=r REDIS_PORT=tcp://10.0.0.1:6379", setting: "store", want: "redis://r:6379", source: "REDIS_HOST"},
		{environ: "REDIS_HOST=r REDIS_URL=redis://u", setting: "store", want: "redis://u", source: "REDIS_URL"},
		{environ: "REDIS_PORT=6380", setting: "store", want: "memory", source: "default"},
		{environ: "PENSTOCK_STORE=memory REDIS_URL=redis://u", setting: "store", want: "memory", source: "PENSTOCK_STORE"},
		{environ: "PENSTOCK_LISTEN=", setting: "listen", want: "127.0.0.1:8080", source: "default"}, // of the demo
	} {
		s, err := load(map[string]string{}, strings.Fields(c.environ)...)
		if got := s.given[c.setting]; err != nil || got != (givenValue{c.want, c.source}) {
			t.Errorf("with %s, %s is %q from %s (error %v); want %q from %s", c.environ, c.setting, got.text, got.source, err, c.want, c.source)
		}
	}
}

func TestDemoListensOnThisMachineByDefault(t *testing.T) {
	for _, c := range []struct {
		demo, environ string
		want          givenValue
	}{
		{demo: "true", want: givenValue{"127.0.0.1:8080", "default"}},
		{demo: "true", environ: "PENSTOCK_LISTEN=:8080", want: givenValue{":8080", "PENSTOCK_LISTEN"}},
		{demo: "true", environ: "PORT=3000", want: givenValue{":3000", "PORT"}},
		{demo: "false", environ: "PENSTOCK_UPSTREAM=http://a", want: givenValue{":8080", "default"}},
	} {
		s, err := Load(Sources{Flags: map[string]string{"demo": c.demo}, Environ: []string{c.environ}})
		if got := s.given["listen"]; err != nil || got != c.want || s.Listen != c.want.text {
			t.Errorf("with demo=%s and %s, listen is %q, %+v (error %v); want %+v", c.demo, c.environ, s.Listen, got, err, c.want)
		}
	}
}

// REDIS_PORT alone names no store. Kubernetes may set it to a URL, and other programs may use it.
func TestLonePortOfRedisIsReported(t *testing.T) {
	for environ, want := range map[string]bool{
		"REDIS_PORT=6380": true, "REDIS_PORT=tcp://10.0.0.1:6379": false, "REDIS_PORT=": false, "PENSTOCK_LISTEN=:4000": false,
		"REDIS_PORT=6380 REDIS_HOST=r": false, "REDIS_PORT=6380 REDIS_URL=redis://u": false, "REDIS_PORT=6380 PENSTOCK_STORE=memory": false,
	} {
		if s, err := load(map[string]string{}, strings.Fields(environ)...); err != nil || s.HasLonePort != want {
			t.Errorf("with %s, HasLonePort is %v, %v; want %v", environ, s.HasLonePort, err, want)
		}
	}
}

func TestSecretsComeFromFilesToo(t *testing.T) {
	path := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(path, []byte("pepper\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := load(map[string]string{}, "PENSTOCK_KEY_HASH_SECRET_FILE="+path)
	if err != nil || string(s.KeyHashSecret) != "pepper" || s.Source("key-hash-secret") != "PENSTOCK_KEY_HASH_SECRET_FILE" {
		t.Errorf("the secret is %q from %s (error %v); want \"pepper\" from the file", s.KeyHashSecret, s.Source("key-hash-secret"), err)
	}
	if _, err := load(map[string]string{}, "PENSTOCK_KEY_HASH_SECRET_FILE="+path+".gone"); !errors.Is(err, ErrInvalid) {
		t.Errorf("with a secret file that does not exist, the error is %v; want ErrInvalid", err)
	}
	if _, err := load(map[string]string{}, "PENSTOCK_PREFIX_FILE="+path); err != nil {
		t.Errorf("with PENSTOCK_PREFIX_FILE, which is ignored because prefix is not secret, the error is %v; want none", err)
	}
}

// With a longer delay, regions would lose contact again and again.
func TestDelayOfRegionsIsBounded(t *testing.T) {
	for _, c := range []struct{ interval, delay, want string }{
		{"1s", "280ms", ""}, {"1s", "281ms", "if a message takes longer than 280ms"}, {"2s", "281ms", ""}, {"2s", "561ms", "longer than 560ms"},
		{"200ms", "", ""}, // nobody has said that the delay is that of the default
	} {
		flags := map[string]string{"demo": "true", "store": "redis://here:1", "region": "eu", "region-peers": "us=redis://there:1", "region-interval": c.interval}
		if c.delay != "" {
			flags["region-delay"] = c.delay
		}
		if _, err := load(flags); (err != nil) != (c.want != "") || !strings.Contains(errorText(err), c.want) {
			t.Errorf("--region-interval %s --region-delay %s: %v; want an error with %q", c.interval, c.delay, err, c.want)
		}
	}
}

// Each secret of this test contains "ter2".
func TestSecretsAreNeverShown(t *testing.T) {
	texts := 0
	for _, store := range []string{
		"redis://user:hunter2@host:6379/0", "redis://:hunter2@host", "redis://user:hun@ter2@host", "redis://user:hunter2/x@host",
		"redis+sentinel://h1,h2/main?sentinel_password=hunter2", "hunter2", "redis:hunter2",
	} {
		for _, suffix := range []string{"", "!"} { // with "!", the address is invalid, so there is an error
			s, err := load(map[string]string{"store": store, "key-hash-secret": "hunter2", "listen": ":1" + suffix})
			for _, text := range []string{s.String(), s.StoreName(), errorText(err)} {
				if strings.Contains(text, "ter2") {
					t.Errorf("with --store=%s, a secret is shown: %s", store, text)
				}
				texts++
			}
		}
	}
	for _, peers := range []string{"us=redis://user:hunter2@host", "us=redis://user:hunter2@host,hunter2", "us=hunter2", "hunter2=redis://h,us=redis://:hunter2/x@host"} {
		s, err := load(map[string]string{"region": "eu", "region-peers": peers})
		for _, text := range []string{s.String(), errorText(err)} {
			if strings.Contains(text, "ter2@") || strings.Contains(errorText(err), "ter2") {
				t.Errorf("with --region-peers=%s, a secret is shown: %s", peers, text)
			}
			texts++
		}
	}
	t.Logf("counted: %d texts without a secret in them", texts)
}

// A secret in a file may contain ${ by chance.
func TestSecretsOfFilesAreNeverShown(t *testing.T) {
	for key, isShown := range map[string]bool{"caller_token": false, "store": false, "prefix": true} {
		path := filepath.Join(t.TempDir(), "p.yaml")
		if err := os.WriteFile(path, []byte("server: {"+key+": \"${hun ter2}\"}\nrules: [{name: a, unlimited: true}]\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := policyfile.Load(path, PolicyOptions())
		if err == nil || strings.Contains(err.Error(), "ter2") != isShown {
			t.Errorf("for %s the error is %v; want one that shows the text: %v", key, err, isShown)
		}
	}
}

func TestUserOfAMistypedURLIsNotShown(t *testing.T) {
	checked := 0
	values := []string{
		"http://u:hunter2@host", "u:hunter2@host", "http://u:hunter2@host:x", "ftp://u:hunter2@host", "http://u:hunter2@", "http://u:hun@ter2@host",
		"http://u:hun://ter2@host", "u:hun://ter2@host", "http://u:ter2%zz@host", "unix:u:hunter2@x", "http://host/?token=hunter2", "http://:hunter2@host?x@y",
	}
	for _, row := range Table {
		for _, value := range values {
			s, err := load(map[string]string{"demo": "true", row.Name: value})
			texts := []string{errorText(err)}
			if row.Name == "upstream" {
				texts = append(texts, s.String())
				sectionWith("upstream", value).Apply(nil, func(_ any, format string, args ...any) { texts = append(texts, fmt.Sprintf(format, args...)) })
			}
			for _, text := range texts {
				checked++
				if strings.Contains(text, "ter2") {
					t.Errorf("with --%s=%s, the user of the URL is shown: %s", row.Name, value, text)
				}
			}
		}
	}
	if _, err := load(map[string]string{"upstream": "http://u:hunter2@host:99999"}); !strings.Contains(errorText(err), "http://(hidden)@host:99999") {
		t.Errorf("the error for a wrong port is %v; want it to show all but the user", err)
	}
	t.Logf("counted: %d texts without the user of a URL", checked)
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestErrorsHaveTheProblemTheSourceAndTheFix(t *testing.T) {
	for _, c := range []struct{ setting, value, want string }{
		{setting: "upstream", value: "localhost:3000", want: `upstream "localhost:3000" (from --upstream): it has no scheme; write http://localhost:3000`},
		{setting: "upstream", value: "10.0.0.1:3000", want: `it has no scheme; write http://10.0.0.1:3000`},
		{setting: "upstream", value: "app", want: `it has no scheme; write http://app`},
		{setting: "upstream", value: "ftp://host", want: `its scheme is not http, https, h2c or unix`},
		{setting: "upstream", value: "http://", want: `it has no host; write http://host:port`},
		{setting: "upstream", value: "http://:80", want: `it has no host`},
		{setting: "upstream", value: "http://h:99999", want: `its port is not a number up to 65535`},
		{setting: "upstream", value: "http://u:p@host", want: `it has a user, a query or a fragment`},
		{setting: "upstream", value: "http://host/?a=b", want: `it has a user, a query or a fragment`},
		{setting: "upstream", value: "unix:app.sock", want: `needs the absolute path of a socket; write unix:/run/app.sock`},
		{setting: "upstream", value: "unix://run/app.sock", want: `needs the absolute path`},
		{setting: "upstream", value: "http://a b", want: `it is not a URL`},
		{setting: "upstream", value: "http://localhost:8080", want: `it is the service's own address (--listen is :8080); change one of the ports`},
		{setting: "upstream", value: "http://[::1]:8080", want: `it is the service's own address`},
		{setting: "listen", value: "8080", want: `write host:port, or :port`},
		{setting: "listen", value: ":http", want: `its port is not a number`},
		{setting: "listen", value: "", want: `it is empty; omit it for the default, :8080`},
		{setting: "admin-listen", value: ":9180", want: `without a host, every machine could reach it; write 127.0.0.1:9180, or 0.0.0.0:9180 to allow that`},
		{setting: "admin-listen", value: "unix:run/a.sock", want: `a Unix socket needs an absolute path`},
		{setting: "near-limit", value: "49", want: `it is out of bounds; write a whole number from 50 to 100`},
		{setting: "near-limit", value: "101", want: `it is out of bounds`},
		{setting: "near-limit", value: "80%", want: `it is not a whole number; write one from 50 to 100`},
		{setting: "shown-identities", value: "all", want: `it is unknown; write off or masked or full`},
		{setting: "admin-listen", value: "0.0.0.0:8080", want: `listen has the same address`},
		{setting: "api", value: "unix:a.sock", want: `needs an absolute path of at most 103 characters; write unix:/run/penstock.sock`},
		{setting: "api", value: "unix:/" + strings.Repeat("a", 103), want: `needs an absolute path`},
		{setting: "api", value: "localhost:8080", want: `listen has the same address`},
		{setting: "grpc", value: "8081", want: `write host:port, or :port`},
		{setting: "grpc", value: ":8081", want: `write --caller-token or --caller-client-ca`},
		{setting: "resp", value: "6380", want: `write host:port, or :port`},
		{setting: "resp", value: ":6380", want: `write --caller-token or --caller-client-ca`},
		{setting: "resp", value: "10.0.0.1:6380", want: `or --allow-open-callers if the network protects it`},
		{setting: "caller-token", value: "0123456789abcde", want: `it can be guessed; write at least 16 characters`},
		{setting: "caller-token", value: "0123456789abcde\x7f", want: `it has characters that some clients cannot send`},
		{setting: "caller-client-ca", value: "ca.pem", want: `it needs --caller-tls-cert and --caller-tls-key`},
		{setting: "caller-tls-cert", value: "c.pem", want: `--caller-tls-cert and --caller-tls-key belong together`},
		{setting: "preserve-host", value: "maybe", want: `it is neither true nor false`},
		{setting: "store", value: "localhost:6379", want: `store (from --store): it is not a URL; write redis://host:6379, rediss://`},
		{setting: "store", value: "unix:/tmp/r.sock", want: `unix:///path/of.sock, redis+sentinel://host:26379/name, redis+cluster://host:6379, or memory`},
		{setting: "store", value: "redis://a,b", want: `redis URL: several hosts are given`},
		{setting: "store", value: "redis://host/-1", want: `the database is "-1"; it must be a whole number from 0 on`},
		{setting: "store", value: "redis://host?ttl=1", want: `the option "ttl" is not known`},
		{setting: "store", value: "http://host", want: `the scheme "http" is not known`},
		{setting: "prefix", value: "a b", want: `the prefix has ' ' at position 2; use letters, digits, '-', '_', '.' and ':'`},
		{setting: "store", value: "", want: `store (from --store): it is empty; omit it for the default, memory`},
		{setting: "require-store", value: "true", want: `the store is memory, which is always up`},
		{setting: "header-timeout", value: "0", want: `it must not be 0; write a duration up to 1h`},
		{setting: "header-timeout", value: "5", want: `it is not a duration; write it like 100ms, 5s or 2m`},
		{setting: "header-timeout", value: "2h", want: `it is out of bounds`},
		{setting: "stall-timeout", value: "-1s", want: `it is out of bounds`},
		{setting: "max-header", value: "0", want: `it must not be 0`},
		{setting: "max-header", value: "2MB", want: `write a size (above 0, up to 1MB)`},
		{setting: "max-body", value: "-1", want: `it is out of bounds`},
		{setting: "max-body", value: "1TB", want: `it is not a size; write it like 512, 16KB or 8MB`},
		{setting: "max-body", value: "9223372036854775807GB", want: `it is out of bounds`},
		{setting: "min-instances", value: "0", want: `it is out of bounds; write a whole number from 1 to 10000`},
		{setting: "min-instances", value: "-1", want: `write a whole number from 1 to 10000`},
		{setting: "min-instances", value: "10001", want: `write a whole number from 1 to 10000`},
		{setting: "min-instances", value: "1e99", want: `it is not a whole number; write one from 1 to 10000`},
		{setting: "min-instances", value: "2KB", want: `it is not a whole number; write one from 1 to 10000`},
		{setting: "min-instances", value: "99999999999999999999", want: `it is out of bounds`},
		{setting: "max-connections", value: "many", want: `it is not a whole number; write one from 1 to 1000000`},
		{setting: "log-format", value: "xml", want: `it is unknown; write text or json`},
		{setting: "tls-cert", value: "a.pem", want: `--tls-cert and --tls-key belong together`},
		{setting: "tls-key", value: "a.pem", want: `tls-cert (not set): --tls-cert and --tls-key belong together`},
		{setting: "tls-client-ca", value: "a.pem", want: `it needs --tls-cert and --tls-key`},
	} {
		_, err := load(map[string]string{c.setting: c.value})
		if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("with --%s=%s the error is %v\nwant ErrInvalid, with the text %q", c.setting, c.value, err, c.want)
		}
	}
	if _, err := Load(Sources{}); err == nil || !strings.Contains(err.Error(), "upstream (not set): write --upstream") {
		t.Errorf("without an upstream, the error is %v; want how to set one", err)
	}
	if _, err := load(map[string]string{"upstream": "http://a", "demo": "true"}); err == nil || !strings.Contains(err.Error(), "--demo (--demo) has its own upstream") {
		t.Errorf("with --upstream and --demo, the error is %v; want that the demo has its own upstream", err)
	}
}

func TestAllErrorsAreReportedTogether(t *testing.T) {
	_, err := load(map[string]string{"listen": "x", "max-header": "y"}, "PENSTOCK_ADMIN_LISTEN=:1", "PENSTOCK_UPSTREAM=z")
	for _, want := range []string{"listen", "max-header", "admin-listen", "upstream"} {
		if err == nil || !strings.Contains(err.Error(), "\n"+want) && !strings.Contains(err.Error(), ": "+want) {
			t.Errorf("the error has no line about %s: %v", want, err)
		}
	}
}

func TestUnknownVariablesAreReported(t *testing.T) {
	s, err := load(map[string]string{}, "PENSTOCK_UPSTEAM=x", "PENSTOCK_LISTEN=:1", "PENSTOCK_STORE_FILE=", "PENSTOCK_PORT=tcp://10.0.0.1:80",
		"PENSTOCK_PORT_80_TCP_ADDR=10.0.0.1", "PENSTOCK_SERVICE_HOST=10.0.0.1", "PENSTOCK_LISTEN_FILE=x")
	if err != nil || !slices.Equal(s.Unknown, []string{"PENSTOCK_LISTEN_FILE", "PENSTOCK_UPSTEAM"}) {
		t.Errorf("the unknown variables are %v (error %v); want PENSTOCK_LISTEN_FILE and PENSTOCK_UPSTEAM", s.Unknown, err)
	}
}

func TestVariableOfARemovedSettingIsAnError(t *testing.T) {
	const want = "there is no variable PENSTOCK_GRPC_SERVER any more; delete it: "
	if _, err := load(map[string]string{}, "PENSTOCK_GRPC_SERVER=standard"); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), want) {
		t.Errorf("the error is %v; want %q in it, and ErrInvalid", err, want)
	}
}

func TestUpstreamsOfAllForms(t *testing.T) {
	for _, text := range []string{"http://localhost:3000", "https://example.com", "http://h/base/path", "h2c://h:50051", "unix:/run/app.sock",
		"unix:///run/app.sock", "http://[::1]:3000", "http://127.0.0.1:8081"} {
		if s, err := load(map[string]string{"upstream": text}); err != nil || s.Upstream == nil {
			t.Errorf("the upstream %q is not accepted: %v", text, err)
		}
	}
}

func TestUpstreamWithoutAPortIsNotTheServiceItself(t *testing.T) {
	for _, row := range []struct {
		listen, upstream string
		isService        bool
	}{
		{listen: ":80", upstream: "http://localhost", isService: true},
		{listen: "127.0.0.1:80", upstream: "h2c://127.0.0.1/base", isService: true},
		{listen: ":443", upstream: "https://[::1]", isService: true},
		{listen: ":80", upstream: "https://localhost", isService: false},
		{listen: ":8080", upstream: "http://localhost", isService: false},
		{listen: ":80", upstream: "http://example.com", isService: false},
		{listen: ":80", upstream: "unix:/run/app.sock", isService: false},
	} {
		_, err := load(map[string]string{"listen": row.listen, "upstream": row.upstream})
		if isService := strings.Contains(errorText(err), "it is the service's own address"); isService != row.isService {
			t.Errorf("with --listen=%s and --upstream=%s, the error is %v; want that it is the service's own address: %t", row.listen, row.upstream, err, row.isService)
		}
	}
}

func TestServiceThatOnlyAnswersCallers(t *testing.T) {
	for _, c := range []struct {
		flags map[string]string
		want  string // a part of the error; "": there is no error
	}{
		{map[string]string{"api": ":1"}, ""},
		{map[string]string{"grpc": "127.0.0.1:1"}, ""},
		{map[string]string{"grpc": "unix:/run/a.sock"}, ""},
		{map[string]string{"grpc": ":1", "caller-token": "0123456789abcdef"}, ""},
		{map[string]string{"grpc": ":1", "caller-client-ca": "a", "caller-tls-cert": "b", "caller-tls-key": "c"}, ""},
		{map[string]string{"grpc": ":1", "api": ":1", "allow-open-callers": "true"}, `api has the same address`},
		{map[string]string{"api": ":1", "caller-token": "0123456789abcdef", "operator-token": "0123456789abcdef"}, `every caller would be an operator`},
		{map[string]string{"envoy-xds": "a:1", "grpc": "127.0.0.1:1"}, ""},
		{map[string]string{"envoy-xds": "a", "grpc": "127.0.0.1:1"}, `it is not an address; write host:port`},
		{map[string]string{"envoy-xds": "a:1", "resp": "127.0.0.1:1"}, `no caller can reach it`},
		{map[string]string{"envoy-xds": "a:1", "grpc": "127.0.0.1:1", "envoy-config": "a"}, `come from --envoy-config (--envoy-config) already`},
		{map[string]string{"envoy-xds": "a:1", "grpc": "127.0.0.1:1", "envoy-xds-cert": "a", "envoy-xds-key": "b"}, `works only with TLS`},
		{map[string]string{"envoy-xds": "a:1", "grpc": "127.0.0.1:1", "envoy-xds-cert": "a"}, `belong together`},
		{map[string]string{"envoy-xds": "a:1", "grpc": "127.0.0.1:1", "envoy-xds-metadata": "a"}, `not of the form name=value`},
		{map[string]string{"envoy-config": "a"}, `no caller can reach it; write --grpc :8081`},
		{map[string]string{"envoy-config": "a", "grpc": "127.0.0.1:1"}, ""},
		{map[string]string{"envoy-config": "a", "grpc": "127.0.0.1:1", "envoy-mode": "exact", "envoy-algorithm": "token-bucket"}, `mode exact has fixed windows only`},
		{map[string]string{"resp": "127.0.0.1:1"}, ""},
		{map[string]string{"resp": "localhost:1"}, ""},
		{map[string]string{"resp": "unix:/run/a.sock"}, ""},
		{map[string]string{"resp": ":1", "caller-token": "0123456789abcdef"}, ""},
		{map[string]string{"resp": ":1", "allow-open-callers": "true"}, ""},
		{map[string]string{"resp": ":1", "caller-client-ca": "a", "caller-tls-cert": "b", "caller-tls-key": "c"}, ""},
		{map[string]string{"resp": "127.0.0.1:1", "api": "127.0.0.1:1"}, `api has the same address`},
		{map[string]string{"resp": "unix:/run/a.sock", "api": "unix:/run/a.sock"}, `api has the same address`},
		{map[string]string{"resp": "127.0.0.1:1", "listen": ":8080"}, `it is the address of the proxy, which needs an upstream`},
		{map[string]string{"resp": "127.0.0.1:8080"}, ""}, // nothing listens on the default of listen
		{nil, `or --api, --grpc or --resp`},
	} {
		_, err := Load(Sources{Flags: c.flags})
		switch {
		case c.want == "" && err != nil:
			t.Errorf("with the flags %v, the error is %v; want none", c.flags, err)
		case c.want != "" && !strings.Contains(errorText(err), c.want):
			t.Errorf("with the flags %v, the error is %v; want one with %q", c.flags, err, c.want)
		}
	}
}

func TestOnlyTheListedSettingsAreLoaded(t *testing.T) {
	s, err := Load(Sources{
		Only:    []string{"prefix", "key-hash-secret"},
		Environ: []string{"PENSTOCK_CONFIG=p.yaml", "PENSTOCK_KEY_HASH_SECRET=s", "PENSTOCK_UPSTREAM=nonsense", "PENSTOCK_LOG_LEVEL=loud"},
		File: func(string) (*Section, error) {
			prefix, listen := "p", "?"
			return &Section{fieldvalues.Texts{Values: map[string]*string{"prefix": &prefix, "listen": &listen}}}, nil
		},
	})
	if err != nil || s.Config != "p.yaml" || s.Prefix != "p" || string(s.KeyHashSecret) != "s" || s.Listen != "" {
		t.Errorf("the settings are %v (error %v); want only config, prefix and key-hash-secret, from both sources", s, err)
	}
}
