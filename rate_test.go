package penstock_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock"
)

func TestParseRateReadsWhatPeopleWrite(t *testing.T) {
	const day = 24 * time.Hour
	rows := []struct {
		text   string
		count  int64
		period time.Duration
		burst  int64
		name   string
	}{
		{"100/s", 100, time.Second, 0, "second"},
		{"100/S", 100, time.Second, 0, "second"},
		{" 100 / s ", 100, time.Second, 0, "second"},
		{"100\t/\ts", 100, time.Second, 0, "second"},
		{"1/sec", 1, time.Second, 0, "second"},
		{"1/secs", 1, time.Second, 0, "second"},
		{"1/second", 1, time.Second, 0, "second"},
		{"1/SECONDS", 1, time.Second, 0, "second"},
		{"7/m", 7, time.Minute, 0, "minute"},
		{"7/min", 7, time.Minute, 0, "minute"},
		{"7/Minute", 7, time.Minute, 0, "minute"},
		{"7/h", 7, time.Hour, 0, "hour"},
		{"7/hr", 7, time.Hour, 0, "hour"},
		{"7/hour", 7, time.Hour, 0, "hour"},
		{"7/d", 7, day, 0, "day"},
		{"7/day", 7, day, 0, "day"},
		{"7/w", 7, 7 * day, 0, "every-7d"},
		{"7 per week", 7, 7 * day, 0, "every-7d"},
		{"7/ms", 7, time.Millisecond, 0, "every-1ms"},
		{"7/us", 7, time.Microsecond, 0, "every-1us"},
		{"7/µs", 7, time.Microsecond, 0, "every-1us"},
		{"7/μs", 7, time.Microsecond, 0, "every-1us"},
		{"10 per minute", 10, time.Minute, 0, "minute"},
		{"10 PER MINUTE", 10, time.Minute, 0, "minute"},
		{"10per minute", 10, time.Minute, 0, "minute"},
		{"100 per 15 minutes", 100, 15 * time.Minute, 0, "every-15m"},
		{"100 per 15min", 100, 15 * time.Minute, 0, "every-15m"},
		{"5/30s", 5, 30 * time.Second, 0, "every-30s"},
		{"5 / 30 s", 5, 30 * time.Second, 0, "every-30s"},
		{"3/500ms", 3, 500 * time.Millisecond, 0, "every-500ms"},
		{"1/250us", 1, 250 * time.Microsecond, 0, "every-250us"},
		{"40 per 1h30m", 40, 90 * time.Minute, 0, "every-1h30m"},
		{"40 per 1 hour 30 minutes", 40, 90 * time.Minute, 0, "every-1h30m"},
		{"40/1h0m5s", 40, time.Hour + 5*time.Second, 0, "every-1h0m5s"},
		{"40/1.5h", 40, 90 * time.Minute, 0, "every-1h30m"},
		{"40/1.5s", 40, 1500 * time.Millisecond, 0, "every-1.5s"},
		{"2/0.5s", 2, 500 * time.Millisecond, 0, "every-500ms"},
		{"9/60s", 9, time.Minute, 0, "minute"},
		{"9/1m0s", 9, time.Minute, 0, "minute"},
		{"9/24h0m0s", 9, day, 0, "day"},
		{"9/2h", 9, 2 * time.Hour, 0, "every-2h"},
		{"9/48h", 9, 2 * day, 0, "every-2d"},
		{"9/1,000ms", 9, time.Second, 0, "second"},
		{"9 per 30 days", 9, 30 * day, 0, "every-30d"},
		{"9 per 1w2d", 9, 9 * day, 0, "every-9d"},
		{"10k/day", 10_000, day, 0, "day"},
		{"10K/day", 10_000, day, 0, "day"},
		{"10 k/day", 10_000, day, 0, "day"},
		{"1.5k/s", 1500, time.Second, 0, "second"},
		{"1M/hour", 1_000_000, time.Hour, 0, "hour"},
		{"2.25M per week", 2_250_000, 7 * day, 0, "every-7d"},
		{"2 million per day", 2_000_000, day, 0, "day"},
		{"20 thousand per day", 20_000, day, 0, "day"},
		{"1_000/h", 1000, time.Hour, 0, "hour"},
		{"1_000_000/h", 1_000_000, time.Hour, 0, "hour"},
		{"10,000 per day", 10_000, day, 0, "day"},
		{"1,234,567 per day", 1_234_567, day, 0, "day"},
		{"5 writes per second", 5, time.Second, 0, "second"},
		{"5 Requests/minute", 5, time.Minute, 0, "minute"},
		{"5k reads / 10s", 5000, 10 * time.Second, 0, "every-10s"},
		{"5 k reads per hour", 5000, time.Hour, 0, "hour"},
		{"5 étapes per hour", 5, time.Hour, 0, "hour"},
		{"10-S", 10, time.Second, 0, "second"},
		{"10-M", 10, time.Minute, 0, "minute"},
		{"10-m", 10, time.Minute, 0, "minute"},
		{"1000-H", 1000, time.Hour, 0, "hour"},
		{"2k-D", 2000, day, 0, "day"},
		{"3/s, burst 10", 3, time.Second, 10, "second"},
		{"3/s burst 10", 3, time.Second, 10, "second"},
		{"3/s,burst 10", 3, time.Second, 10, "second"},
		{"3 per second , BURST 1k ", 3, time.Second, 1000, "second"},
		{"3/s burst 1.5k", 3, time.Second, 1500, "second"},
		{"3/1h30m, burst 1,000", 3, 90 * time.Minute, 1000, "every-1h30m"},
		{"10-M, burst 20", 10, time.Minute, 20, "minute"},
		{"2251799813685248/s", 1 << 51, time.Second, 0, "second"},
		{"1 per 2920 days", 1, 2920 * day, 0, "every-2920d"},
	}
	for _, row := range rows {
		want := penstock.Limit{Name: row.name, Count: row.count, Period: row.period, Burst: row.burst}
		got, err := penstock.ParseRate(row.text)
		if err != nil || got != want {
			t.Errorf("ParseRate(%q) = %v, %v; want %v", row.text, got, err, want)
		}
	}
}

// Each row's error must contain all of the words: those of the place, the mistake and the fix.
func TestErrorsOfParseRateHavePlaceMistakeAndFix(t *testing.T) {
	rows := []struct {
		text  string
		words []string
	}{
		{"", []string{"character 1", "number", "100/s"}},
		{"   ", []string{"character 4", "number"}},
		{"fast", []string{"character 1", "number", "100/s"}},
		{"-5/s", []string{"character 1", "number"}},
		{"+5/s", []string{"character 1", "number"}},
		{"0/s", []string{"count is 0", "at least 1"}},
		{"100", []string{"character 4", "period is missing", "100/s"}},
		{"100 requests", []string{"character 13", "period is missing"}},
		{"100/", []string{"character 5", "period is missing", "30s"}},
		{"100rpm", []string{"character 4", "rpm", "write 100/min"}},
		{"10k RPS", []string{"character 5", "RPS", "write 10k/s"}},
		{"100/rpm", []string{"character 5", "rpm", "write min"}},
		{"100 per", []string{"character 8", "period is missing"}},
		{"100/30", []string{"character 7", "needs a unit", "min"}},
		{"100/fortnight", []string{"character 5", `"fortnight"`, "min"}},
		{"100 pr minute", []string{"character 8", `"minute"`, "/ or per"}},
		{"100 a minute", []string{"character 7", `"minute"`, "/ or per"}},
		{"100/M", []string{"character 5", "month", "min"}},
		{"100/month", []string{"character 5", "30 days", "CalendarWindow"}},
		{"100 per 3 months", []string{"character 11", "30 days"}},
		{"100/year", []string{"character 5", "365 days"}},
		{"100/0s", []string{"character 5", "period is 0"}},
		{"100/0.5us", []string{"character 5", "microseconds"}},
		{"100/ns", []string{"character 5", `"ns"`}},
		{"100/999999999999999999h", []string{"character 5", "8 years"}},
		{"100/2921d", []string{"period", "8 years"}},
		{"2.5/s", []string{"character 1", "whole number", "5/2s"}},
		{"10.000 per day", []string{"character 1", "whole number", "10"}},
		{"1.0005k/s", []string{"character 1", "whole number"}},
		{"1,00/s", []string{"character 1", "groups of three", "10,000"}},
		{"1000,000/s", []string{"character 1", "groups of three"}},
		{"1,0_0,000/s", []string{"character 1", "groups of three"}},
		{"1__0/s", []string{"character 2", `"__0/s"`, "/ or per"}},
		{"1.2.3k/s", []string{"character 1", "not a number"}},
		{"10 000/day", []string{"character 4", `"000/day"`, "/ or per"}},
		{"10m/s", []string{"character 3", "M for a million", "/min"}},
		{"10G/s", []string{"character 3", "follows the count"}},
		{"10 G/s", []string{"character 4", "digits"}},
		{"10 MB/s", []string{"character 4", "10M", "cost"}},
		{"10 billion/s", []string{"character 4", "digits"}},
		{"10 dozen/s", []string{"character 4", "digits"}},
		{"10 percent/s", []string{"character 4", "units"}},
		{"10req/s", []string{"character 3", "space"}},
		{"10 minutes per hour", []string{"character 4", "/ or per"}},
		{"10 k k/s", []string{"character 6", "/ or per"}},
		{"10-W", []string{"character 4", "S, M, H or D"}},
		{"10-30s", []string{"character 4", "S, M, H or D"}},
		{"10-", []string{"character 4", "S, M, H or D"}},
		{"10/s20", []string{"character 7", "needs a unit"}},
		{"10/s!", []string{"character 5", `"!"`, "burst N"}},
		{"10/s,", []string{"character 5", "burst N"}},
		{"10/s, 20", []string{"character 5", "burst N"}},
		{"10/s per minute", []string{"character 6", "burst N"}},
		{"10/s burst", []string{"character 11", "number"}},
		{"10/s burst many", []string{"character 12", "number"}},
		{"10/s burst 0", []string{"character 12", "burst is 0", "write 1"}},
		{"10/s burst 1.5", []string{"character 12", "whole"}},
		{"10/s burst 5m", []string{"character 13", `"m"`}},
		{"10/s burst 5 tokens", []string{"character 14", `"tokens"`}},
		{"9223372036854775808/s", []string{"character 1", "below 2^63"}},
		{"9000000000000000M/s", []string{"character 1", "below 2^63"}},
		{"9223372036854775807/s", []string{"count is 9223372036854775807", "2^51"}},
		{"10/s burst 9223372036854775807", []string{"burst is", "2^51"}},
		{"5 per ½ second", []string{"character 7", "unit"}},
		{"５/s", []string{"character 1", "number"}},
		{"10/s\xff", []string{"UTF-8", "100/s"}},
		{strings.Repeat("9", 129), []string{"128 bytes", "100/s"}},
	}
	for _, row := range rows {
		limit, err := penstock.ParseRate(row.text)
		if !errors.Is(err, penstock.ErrInvalid) || limit != (penstock.Limit{}) {
			t.Errorf("ParseRate(%q) = %v, %v; want no limit and an error that wraps ErrInvalid", row.text, limit, err)
			continue
		}
		for _, word := range row.words {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("ParseRate(%q): the error is %q; want it to contain %q", row.text, err, word)
			}
		}
		if strings.Count(err.Error(), penstock.ErrInvalid.Error()) != 1 {
			t.Errorf("ParseRate(%q): the error is %q; want the text of ErrInvalid in it once", row.text, err)
		}
	}
}

// rateOf returns the rate in the String of a limit, such as "10 per 1s".
func rateOf(l penstock.Limit) string {
	_, rate, _ := strings.Cut(l.String(), ": ")
	rate, _, _ = strings.Cut(rate, " (")
	return rate
}

func TestParseRateReadsWhatConstructorsWrite(t *testing.T) {
	for _, want := range []penstock.Limit{
		penstock.PerSecond(10), penstock.PerMinute(10), penstock.PerHour(1), penstock.PerDay(10_000).WithBurst(100),
	} {
		if got, err := penstock.ParseRate(rateOf(want)); err != nil || got != want {
			t.Errorf("ParseRate(%q) = %v, %v; want %v", rateOf(want), got, err, want)
		}
	}
}

func FuzzParseRate(f *testing.F) {
	for _, text := range []string{
		"100/s", "10 per minute", "5/30s", "10k/day", "1.5M/hour", "10-M", "100 per 1h30m", "3/s, burst 10",
		"10,000 per day", "1_000/h", "5 writes per second", "1/µs", "10/s burst", "9223372036854775807/s", "10 000/day",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		limit, err := penstock.ParseRate(text)
		if err != nil {
			if !errors.Is(err, penstock.ErrInvalid) {
				t.Fatalf("ParseRate(%q): the error is %v; want one that wraps ErrInvalid", text, err)
			}
			return
		}
		if err := limit.With(penstock.FixedWindow).Validate(); err != nil {
			t.Fatalf("ParseRate(%q) = %v, which is invalid: %v; want a valid limit or an error", text, limit, err)
		}
		again, err := penstock.ParseRate(rateOf(limit))
		if err != nil || again != limit {
			t.Fatalf("ParseRate(%q) = %v; ParseRate of its text %q = %v, %v; want the same limit", text, limit, rateOf(limit), again, err)
		}
	})
}
