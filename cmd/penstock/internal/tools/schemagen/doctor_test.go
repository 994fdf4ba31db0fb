package schemagen

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/penstock/penstock/cmd/penstock/internal/tools/doctor"
	"github.com/penstock/penstock/internal/testing/redistest"
)

// TestReportsOfTheDoctorObeyTheirSchema checks the reports of a good server, of a bad one, of a
// Cluster, and of a server that is down.
func TestReportsOfTheDoctorObeyTheirSchema(t *testing.T) {
	schema := compileReport(t, "doctor")
	check := func(text []byte) error {
		value, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		return schema.Validate(value)
	}

	good, bad, cluster := redistest.Start(t), redistest.Start(t, "--maxmemory", "1", "--maxmemory-policy", "allkeys-lru"), redistest.StartCluster(t)
	// The doctor reports two problems: the user "few" may not run INFO, and the key has no TTL.
	for _, command := range []string{"ACL SETUSER few on >secret ~ps1* +@all -info", "SET ps1{key:a}rule x"} {
		if _, err := good.Do(strings.Fields(command)...); err != nil {
			t.Fatal(err)
		}
	}
	const downURL = "redis://127.0.0.1:1" // nothing listens on port 1
	var lastReport []byte                 // of downURL
	seen := make(map[doctor.Status]bool)
	for _, url := range []string{"redis://" + good.Addr, "redis://" + bad.Addr, "redis://few:secret@" + good.Addr, "redis://" + cluster.Nodes[0].Addr, downURL} {
		report, err := doctor.Run(t.Context(), doctor.Options{URL: url, Name: "a store", StoreTimeout: 250 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		if lastReport, err = json.Marshal(report); err != nil {
			t.Fatal(err)
		}
		if err := check(lastReport); err != nil {
			t.Errorf("the report of %s does not obey the schema: %v\n%s", url, err, lastReport)
		}
		for _, c := range report.Checks {
			seen[c.Status] = true
		}
	}
	if len(seen) != 4 {
		t.Errorf("the reports have the statuses %v; want all four", seen)
	}
	for old, replacement := range map[string]string{`"failed"`: `"bad"`, `"store"`: `"shop"`, `"name"`: `"nom"`, `"why"`: `"because"`} {
		if !bytes.Contains(lastReport, []byte(old)) {
			t.Errorf("the report does not contain %s:\n%s", old, lastReport)
		}
		if check(bytes.ReplaceAll(lastReport, []byte(old), []byte(replacement))) == nil {
			t.Errorf("the schema accepts %s in place of %s; want an error", replacement, old)
		}
	}
}
