package faults

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// catalogue has all faults, by families. Their numbers go from F1 to F30.
var catalogue = slices.Concat(down, slow, refusing, lost, crowded, secured, timed, failovers, splits, reshards)

// elsewhere lists faults without an entry in the catalogue, or with further tests. It says where
// they are tested, as "file: test", or why not.
var elsewhere = map[string][]string{
	"F1":  {"redisstore/clients_test.go: TestServerMayComeUpLater"},
	"F2":  {"redisstore/clients_test.go: TestEveryCallEndsWhateverTheServerDoes", "guard/outage_test.go: TestEveryQuestionIsAnsweredWhileRedisIsStoppedAndKilled"},
	"F4":  {"redisstore/clients_test.go: TestEveryCallEndsWhateverTheServerDoes", "guard/outage_test.go: TestEveryQuestionIsAnsweredWhileRedisIsStoppedAndKilled"},
	"F5":  {"redisstore/clients_test.go: TestServerThatIsLoadingIsNotReady"},
	"F7":  {"redisstore/clients_test.go: TestServerThatCannotDecideSaysSoForEveryCharge"}, // also denials
	"F9":  {"redisstore/clients_test.go: TestClusterWithoutAPrimaryIsDown"},
	"F11": {"redisstore/memory_test.go: TestMemoryTellsWhetherCountersMayVanish"},
	"F12": {"redisstore/clients_test.go: TestForgottenScriptsChargeOnce"},
	"F15": {"redisstore/clients_test.go: TestLostRepliesNeverChargeTwice"},
	"F17": {"redisstore/clients_test.go: TestStoreNeedsTheseRightsOnly", "redisstore/clients_test.go: TestWrongLoginsAreRefused"},
	"F21": {"internal/faults/process_test.go: TestStoppedProgramSpendsNothingOfItsOldLease", "guard/internal/lease/draw_test.go: TestStoppedInstanceSpendsNothingOld",
		"internal/faults/busy_test.go: TestBusyMachineIsNoFailureOfTheStore"},
	"F22": {"internal/faults/process_test.go: TestKilledProgramLosesAtMostItsLease", "internal/faults/process_test.go: TestTerminatedProgramReturnsItsLease"},
	"F23": {"policy/policyfile/watch_test.go: TestRulesAreNeverAMixtureOfTwoVersions", "policy/policyfile/watch_test.go: TestBrokenFileChangesNothing", "httplimit/reload_test.go: TestReloadIsNeverAMixture"},
	"F27": {"why not: instances do not count locally and sync later; units admitted in an outage are never charged to the store"},
}

func TestEveryFaultOfTheCatalogueIsTested(t *testing.T) {
	for n := 1; n <= 30; n++ {
		id := fmt.Sprint("F", n)
		if len(elsewhere[id]) == 0 && !slices.ContainsFunc(catalogue, func(r fault) bool { return r.id == id }) {
			t.Errorf("%s has no entry, and is not listed as tested elsewhere", id)
		}
		for _, where := range elsewhere[id] {
			file, test, _ := strings.Cut(where, ": ")
			if file == "why not" {
				continue
			}
			text, err := os.ReadFile("../../" + file)
			if err != nil || !strings.Contains(string(text), "\nfunc "+test+"(t *testing.T)") {
				t.Errorf("%s: there is no %s in %s (%v)", id, test, file, err)
			}
		}
	}
}
