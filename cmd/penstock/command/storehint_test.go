package command

import (
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/testing/redistest"
)

// TestErrorsOfTheStoreSayHowToFixThem: each command that uses the store says what to do if it gives
// no answer.
func TestErrorsOfTheStoreSayHowToFixThem(t *testing.T) {
	rules := writeFile(t, "rules.yaml", "rules: [{name: all, per: ip, limits: [{rate: 2/d}]}]\n")
	redis := redistest.Start(t)
	full := redistest.Start(t, "--maxmemory", "1") // byte
	locked := redistest.Start(t)
	for _, line := range []string{"ACL SETUSER other on >right allkeys +@all -eval -evalsha", "CONFIG SET requirepass right"} {
		if _, err := locked.Do(strings.Fields(line)...); err != nil {
			t.Fatal(err)
		}
	}
	const doctor = "penstock doctor --store URL finds the cause."
	for store, want := range map[string]string{
		"redis://" + full.Addr:                           "out_of_memory: | Redis is full: raise its maxmemory",
		"redis://" + locked.Addr:                         "permission_denied: | redis://USER:PASSWORD@HOST:6379",
		"redis://:wrong@" + locked.Addr:                  "permission_denied: | redis://USER:PASSWORD@HOST:6379",
		"redis://other:right@" + locked.Addr:             "permission_denied: | Grant the user of the URL what is missing: +eval",
		"redis://127.0.0.1:1":                            "unreachable: | Check that Redis runs at this address",
		"rediss://" + redis.Addr + "?dial_timeout=300ms": " | rediss:// for a port with TLS, redis:// for one without",
	} {
		for name, args := range map[string][]string{
			"status":  {"status", "ip:192.0.2.1", "--store", store, "--config", rules},
			"explain": {"explain", "/", "--from", "192.0.2.1", "--store", store, "--config", rules},
			"reset":   {"reset", "ip:192.0.2.1", "--store", store, "--config", rules, "--reason", "test", "--yes"},
			"serve":   {"serve", "--store", store, "--config", rules, "--require-store", "--api", "127.0.0.1:0", "--admin-listen", "off"},
		} {
			code, out, errors := command(args...)
			for part := range strings.SplitSeq(want+" | "+doctor, " | ") {
				if code != exitUnreachable || !strings.Contains(errors, part) {
					t.Errorf("%s with %s: exit status %d, %s%s; want %d, and %q", name, store, code, out, errors, exitUnreachable, part)
				}
			}
		}
	}
}
