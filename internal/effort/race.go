package effort

// WithoutRace skips a test under the race detector, and must be its first statement. It is for long
// tests of one goroutine at a time, where the detector finds nothing and takes ten times as long,
// and for tests that count allocations, of which the detector makes some. make test runs them
// without it.
func WithoutRace(t interface {
	Helper()
	Skip(args ...any)
}) {
	t.Helper()
	if underRace {
		t.Skip("runs without the race detector only")
	}
}
