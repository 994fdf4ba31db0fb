package faults

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// The catalogue, by families. Its numbers go from F1 to F30.
var catalogue = slices.Concat(down, slow, refusing, lost, crowded, secured, timed, failovers, splits, reshards)

// elsewhere are faults that have no row, or more than one: where they are tested, as "file: test",
// or why they are not.
var elsewhere = map[string][]string{
	"F1":  {"redisstore/faults_test.go: TestServerMayComeUpLater"},
	"F2":  {"redisstore/faults_test.go: TestEveryCallEndsWhateverTheServerDoes", "guard/outage_test.go: TestEveryQuestionIsAnsweredWhileRedisIsStoppedAndKilled"},
	"F4":  {"redisstore/faults_test.go: TestEveryCallEndsWhateverTheServerDoes", "guard/outage_test.go: TestEveryQuestionIsAnsweredWhileRedisIsStoppedAndKilled"},
	"F5":  {"redisstore/errors_test.go: TestServerThatIsLoadingIsUnready"},
	"F7":  {"redisstore/errors_test.go: TestServerThatCannotDecideSaysSoForEveryCharge"}, // denials too
	"F9":  {"redisstore/errors_test.go: TestClusterWithoutAPrimaryIsDown"},
	"F11": {"redisstore/memory_test.go: TestMemoryTellsWhetherCountersMayVanish"},
	"F12": {"redisstore/faults_test.go: TestForgottenScriptsAreSentAgainAndChargeOnce"},
	"F15": {"redisstore/faults_test.go: TestLostAnswerNeverChargesTwice"},
	"F17": {"redisstore/errors_test.go: TestStoreNeedsTheseRightsOnly", "redisstore/errors_test.go: TestStrangersAreRefused"},
	"F21": {"internal/faults/process_test.go: TestStoppedProgramSpendsNothingOfItsOldLease", "guard/lease_flight_test.go: TestStoppedInstanceSpendsNothingOld",
		"internal/faults/busy_test.go: TestBusyMachineIsNoFailureOfTheStore"},
	"F22": {"internal/faults/process_test.go: TestKilledProgramLosesAtMostItsLease", "internal/faults/process_test.go: TestProgramThatIsToldToEndGivesAllBack"},
	"F23": {"policy/watch_test.go: TestRulesAreNeverAMixtureOfTwoVersions", "policy/watch_test.go: TestBrokenFileChangesNothing", "httplimit/reload_test.go: TestReloadIsNeverAMixture"},
	"F27": {"why not: instances do not count apart and sync later; what an outage let in is never charged to the store"},
}

func TestEveryFaultOfTheCatalogueIsTested(t *testing.T) {
	for n := 1; n <= 30; n++ {
		id := fmt.Sprint("F", n)
		if len(elsewhere[id]) == 0 && !slices.ContainsFunc(catalogue, func(r row) bool { return r.id == id }) {
			t.Errorf("%s has no row, and nothing says where it is tested", id)
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
