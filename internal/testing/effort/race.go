package effort

// SkipUnderRace skips a test if the race detector is on. It must be the first statement of the
// test: the Makefile searches for it there, and runs these tests without the detector.
//
// SkipUnderRace is for long tests in which only one goroutine runs at a time. In these tests the
// detector finds nothing, and makes them take ten times as long. It is also for tests that count
// allocations, because the detector allocates memory itself.
func SkipUnderRace(t interface {
	Helper()
	Skip(args ...any)
}) {
	t.Helper()
	if isUnderRace {
		t.Skip("runs without the race detector only")
	}
}
