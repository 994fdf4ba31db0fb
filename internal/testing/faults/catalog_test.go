package faults

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// catalog has all faults, by family. The numbers of the faults are F1 to F30.
var catalog = slices.Concat(down, slow, refusing, lost, crowded, secured, timed, failovers, splits, reshards)

// elsewhere lists tests of faults outside the catalog. Each string is "FILE: TEST", or "why not:
// REASON" for a fault that no test can cover.
var elsewhere = map[string][]string{
	"F1":  {"internal/testing/clienttest/faults.go: serverComesUpLater"},
	"F2":  {"internal/testing/clienttest/faults.go: everyCallEnds", "guard/outage_test.go: TestEveryCallIsDecidedWhileRedisIsStoppedAndKilled"},
	"F4":  {"internal/testing/clienttest/faults.go: everyCallEnds", "guard/outage_test.go: TestEveryCallIsDecidedWhileRedisIsStoppedAndKilled"},
	"F5":  {"internal/testing/clienttest/errors.go: serverIsLoading"},
	"F7":  {"internal/testing/clienttest/errors.go: serverCannotDecide"}, // also denials
	"F9":  {"internal/testing/clienttest/errors.go: clusterDown"},
	"F11": {"cmd/penstock/internal/console/redisops/servers_test.go: TestServersReportWhetherCountersMayBeEvicted"},
	"F12": {"internal/testing/clienttest/faults.go: forgottenScriptsChargeOnce"},
	"F15": {"internal/testing/clienttest/faults.go: lostRepliesNeverChargeTwice", "internal/testing/clienttest/outofstep.go: RepliesOutOfStep"},
	"F17": {"internal/testing/clienttest/errors.go: rightsOnOneServer", "internal/testing/clienttest/errors.go: wrongLogin"},
	"F21": {"internal/testing/faults/process_test.go: TestStoppedProgramSpendsNothingOfItsOldLease", "internal/lease/draw_test.go: TestStoppedInstanceSpendsNothingOld",
		"internal/testing/faults/busy_test.go: TestBusyMachineIsNoFailureOfTheStore"},
	"F22": {"internal/testing/faults/process_test.go: TestKilledProgramLosesAtMostItsLease", "internal/testing/faults/process_test.go: TestTerminatedProgramReturnsItsLease"},
	"F23": {"policy/policyfile/watch_test.go: TestRulesAreNeverAMixtureOfTwoVersions", "policy/policyfile/watch_test.go: TestBrokenFileChangesNothing", "httplimit/reload_test.go: TestReloadIsNeverAMixture"},
	"F27": {"why not: units that an instance admits in an outage are never charged to the store later"},
}

func TestEveryFaultOfTheCatalogIsTested(t *testing.T) {
	for n := 1; n <= 30; n++ {
		id := fmt.Sprint("F", n)
		if len(elsewhere[id]) == 0 && !slices.ContainsFunc(catalog, func(f fault) bool { return f.id == id }) {
			t.Errorf("%s has no entry in the catalog, and none in elsewhere; want one of them", id)
		}
		for _, where := range elsewhere[id] {
			file, test, _ := strings.Cut(where, ": ")
			if file == "why not" {
				continue
			}
			text, err := os.ReadFile("../../../" + file)
			if err != nil || !strings.Contains(string(text), "\nfunc "+test+"(t *testing.T") {
				t.Errorf("%s: elsewhere names the test %s in %s; want one that exists (%v)", id, test, file, err)
			}
		}
	}
}
