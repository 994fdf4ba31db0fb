package algorithm

import (
	"archive/zip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/testing/effort"
)

// A day begins at the first moment that has its date, in every zone. That includes zones where
// midnight does not exist or comes twice, and where a day was skipped. The test searches for the
// beginnings of the days around each change of a zone's clock, and compares them with the windows.
func TestDaysBeginWithTheirDateInEveryZone(t *testing.T) {
	since := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	until := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	// A shift is a change of the clock. Many zones have the same shifts, so each shift is checked
	// once.
	type shift struct {
		at            int64 // seconds since the epoch
		before, after int   // offsets from UTC, in seconds
	}
	zones, checked, skipped, seen := allZones(t), 0, 0, map[shift]bool{}
	checkOneIn := effort.Of(50, 1) // of the changes far from midnight, one in this many is checked
	for _, name := range zones {
		zone, err := time.LoadLocation(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, change := range changes(zone, since, until) {
			_, before := change.Add(-time.Second).Zone()
			_, after := change.Zone()
			s := shift{at: change.Unix(), before: before, after: after}
			if seen[s] {
				continue
			}
			seen[s] = true
			hour := change.Add(-2 * time.Hour).In(zone).Hour()
			isFarFromMidnight := hour > 2 && hour < 20
			if isFarFromMidnight && (checked+skipped)%checkOneIn != 0 {
				skipped++
				continue
			}
			checked++
			checkDaysAround(t, zone, change)
		}
	}
	if len(zones) < 400 || checked < 2000 {
		t.Errorf("%d changes of %d zones were checked; want at least 2000 of 400; is the list of zones complete?", checked, len(zones))
	}
	t.Logf("counted: %d changes of the clock in %d zones (%d far from midnight were skipped)", checked, len(zones), skipped)
}

// checkDaysAround finds the beginnings of the days around a change of the clock in small
// steps, and compares them with the ends of the windows.
func checkDaysAround(t *testing.T, zone *time.Location, change time.Time) {
	t.Helper()
	const stride = 15 * time.Minute
	day := func(at time.Time) int64 { // the number of the local date since 1970-01-01
		y, m, d := at.In(zone).Date()
		return time.Date(y, m, d, 0, 0, 0, 0, time.UTC).Unix() / 86400
	}
	calendar := CalendarWindow(Day, zone)
	p, err := calendar.Prepare(Limit{Count: 1, Period: 1})
	if err != nil {
		t.Fatal(err)
	}
	from := change.Add(-50 * time.Hour).Truncate(time.Hour)
	latest := day(from)
	var begins []int64 // when each day begins, in µs
	for at := from; at.Before(change.Add(100 * time.Hour)); at = at.Add(stride) {
		if day(at) <= latest {
			continue
		}
		first := at.Add(-stride)
		for day(first) <= latest {
			first = first.Add(time.Second)
		}
		begins, latest = append(begins, first.UnixMicro()), max(latest, day(first))
		for day(first) < day(at) { // a day of less than a stride
			first = first.Add(time.Second)
			if day(first) > latest {
				begins, latest = append(begins, first.UnixMicro()), day(first)
			}
		}
	}
	for i := 0; i+1 < len(begins); i++ {
		for _, at := range []int64{begins[i], begins[i] + 1, (begins[i] + begins[i+1]) / 2, begins[i+1] - 1} {
			adapted := calendar.paramsAt(p, at)
			if end, _, _, _ := windowEnd(adapted[1], adapted[2], adapted[3], at); end != begins[i+1] {
				t.Fatalf("%v: the day of %v ends at %v; want %v", zone, time.UnixMicro(at).In(zone), time.UnixMicro(end).In(zone),
					time.UnixMicro(begins[i+1]).In(zone))
			}
		}
	}
}

// changes returns the moments at which a zone's clock changes.
func changes(zone *time.Location, since, until time.Time) []time.Time {
	var all []time.Time
	for at := since.In(zone); at.Before(until); {
		_, end := at.ZoneBounds()
		if end.IsZero() {
			break
		}
		if !end.After(at) { // Go 1.26 returns a wrong end on the last day of future leap years
			end = at.Add(time.Hour)
		}
		_, before := end.Add(-time.Second).Zone()
		if _, after := end.Zone(); before != after {
			all = append(all, end)
		}
		at = end
	}
	return all
}

// allZones returns the names of the time zones in the tz database.
func allZones(t *testing.T) []string {
	var names []string
	for _, root := range []string{"/usr/share/zoneinfo", "/usr/lib/zoneinfo"} {
		_ = filepath.WalkDir(root, func(path string, entry os.DirEntry, err error) error {
			name := strings.TrimPrefix(strings.TrimPrefix(path, root), "/")
			if err == nil && !entry.IsDir() && strings.Contains(name, "/") && !strings.HasPrefix(name, "posix/") && !strings.HasPrefix(name, "right/") {
				if _, err := time.LoadLocation(name); err == nil {
					names = append(names, name)
				}
			}
			return nil
		})
	}
	if len(names) > 0 {
		return names
	}
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatalf("this machine has no list of time zones: %v; install tzdata", err)
	}
	archive, err := zip.OpenReader(filepath.Join(strings.TrimSpace(string(root)), "lib", "time", "zoneinfo.zip"))
	if err != nil {
		t.Fatalf("this machine has no list of time zones: %v; install tzdata", err)
	}
	defer archive.Close()
	for _, file := range archive.File {
		if strings.Contains(file.Name, "/") && !strings.HasSuffix(file.Name, "/") {
			names = append(names, file.Name)
		}
	}
	return names
}

// The clock steps back across the end of a window, by any time. At most the Counts of two windows
// are then admitted in the time of one window, and the answer of a denied Peek is exact.
func TestStepBackAdmitsNoThirdCount(t *testing.T) {
	const width = 60_000_000            // of a window, in µs
	edge := epoch - epoch%width + width // the end of a window
	for _, a := range []subject{windowSubject(), anchoredSubject(), calendarSubject(Day, "Asia/Kolkata")} {
		r := startRunWith(a, seeded(1, 1), Limit{Count: 100, Period: width})
		length := int64(width)
		if a.calendarAt != nil {
			length = day
			r.now = epoch
			edge = r.currentWindowEnd()
		}
		all := Request{Mode: Draw, Cost: Max / 2}
		for _, back := range []int64{MaxStall + 1, 11_000_000, length + 11_000_000, 1000 * length} {
			r.decide(Request{Mode: Reset})
			r.now = edge - 1
			admitted := r.decide(all).Granted
			r.now = edge + 1_000_000
			admitted += r.decide(all).Granted
			r.now -= back
			stepped := r.now
			peek := r.decide(Request{Mode: Peek, Cost: 1})
			for r.now < stepped+length-2_000_000 { // until about 1 s less than a window has passed since the first request
				admitted += r.decide(all).Granted
				r.now += length / 97
			}
			if admitted > 200 {
				t.Errorf("%s: after a step back of %d µs, %d units were admitted in less than a window; want at most 200", a.name, back, admitted)
			}
			if peek.OK() {
				t.Errorf("%s: after a step back of %d µs, a peek is granted: %+v; want that no unit is left", a.name, back, peek)
				continue
			}
			r.now = stepped + peek.RetryAfter - 1
			if out := r.decide(Request{Mode: Peek, Cost: 1}); out.RetryAfter != 1 {
				t.Errorf("%s: after a step back of %d µs, 1 µs before the RetryAfter of a peek, the outcome is %+v; want a RetryAfter of 1", a.name, back, out)
			}
		}
	}
}
