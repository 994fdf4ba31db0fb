package loadaverage

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// texts returns a function that returns one text after the other, and then the last one again.
func texts(list ...string) func() ([]byte, error) {
	return func() ([]byte, error) {
		text := list[0]
		if len(list) > 1 {
			list = list[1:]
		}
		return []byte(text), nil
	}
}

func TestLoadIsPrintedAndRecorded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		r, err := begin(&out, "figures.json", texts("0.42 7.00 9.00 1/190 19182\n", "2.10 7.00 9.00 1/190 19183\n"))
		if err != nil {
			t.Fatalf("an idle machine: %v; want no error", err)
		}
		record := r.End()
		if *record.LoadBefore != 0.42 || *record.LoadAfter != 2.1 || record.Date != "2000-01-01" { // the clock of synctest
			t.Errorf("the record has the loads %v and %v and the date %s; want 0.42, 2.1 and 2000-01-01", *record.LoadBefore, *record.LoadAfter, record.Date)
		}
		if want := "Load average before the run: 0.42\nLoad average after the run: 2.10\n"; out.String() != want {
			t.Errorf("it prints %q; want %q", out.String(), want)
		}
		if want := "The load average was 0.42 before the run, and 2.10 after it."; record.String() != want {
			t.Errorf("the record is %q; want %q", record, want)
		}
	})
}

func TestFiguresOfABusyMachineAreNotSaved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var out strings.Builder
		_, err := begin(&out, "figures.json", texts("1.01 0.50 0.50 1/190 19182\n"))
		if err == nil || !strings.Contains(err.Error(), "figures.json cannot be written, because the load average stays above 1") || !strings.Contains(err.Error(), "without -save") {
			t.Errorf("at a load of 1.01, the error is %v; want one that names the file, the reason and a remedy", err)
		}
		if waited := time.Since(start); waited != patience || !strings.Contains(out.String(), "Waiting up to 5m0s") {
			t.Errorf("it gave up after %v, and printed %q; want %v, and a line about waiting", waited, &out, patience)
		}
	})
}

func TestLoadOfABuildPasses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		r, err := begin(new(strings.Builder), "figures.json", texts("3.00 0 0", "1.50 0 0", "1.00 0 0"))
		if err != nil || *r.before != 1 || time.Since(start) != 2*interval {
			t.Errorf("it returned the error %v after %v; want none, as soon as the load average is 1", err, time.Since(start))
		}
	})
}

func TestAnyLoadWillDoIfNothingIsSaved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		if r, err := begin(new(strings.Builder), "", texts("9.00 0 0")); err != nil || *r.before != 9 {
			t.Errorf("without a file, the error is %v; want none", err)
		}
	})
}

func TestUnknownLoadIsNoReasonToRefuse(t *testing.T) {
	for _, row := range []struct {
		read func() ([]byte, error)
		want string
	}{
		{func() ([]byte, error) { return nil, errors.New("open /proc/loadavg: no such file") }, "is unknown: open /proc/loadavg: no such file"},
		{texts("many"), `is unknown: /proc/loadavg begins with "many"`},
	} {
		var out strings.Builder
		r, err := begin(&out, "figures.json", row.read)
		if err != nil {
			t.Errorf("%q: the error is %v; want none", row.want, err)
			continue
		}
		record := r.End()
		if record.LoadBefore != nil || record.LoadAfter != nil || fmt.Sprint(record) != "The load average is unknown." {
			t.Errorf("%q: the record is %v; want no loads", row.want, record)
		}
		if !strings.Contains(out.String(), row.want) {
			t.Errorf("it prints %q; want a line with %q", &out, row.want)
		}
	}
}
