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
	// every returns a limit whose name is "every-" and a period.
	every := func(periodName string, period time.Duration, count int64) penstock.Limit {
		return penstock.Limit{Name: "every-" + periodName, Count: count, Period: period}
	}
	rows := []struct {
		text string
		want penstock.Limit
	}{
		{"100/s", penstock.PerSecond(100)},
		{"100/S", penstock.PerSecond(100)},
		{" 100 / s ", penstock.PerSecond(100)},
		{"100\t/\ts", penstock.PerSecond(100)},
		{"1/sec", penstock.PerSecond(1)},
		{"1/secs", penstock.PerSecond(1)},
		{"1/second", penstock.PerSecond(1)},
		{"1/SECONDS", penstock.PerSecond(1)},
		{"7/m", penstock.PerMinute(7)},
		{"7/min", penstock.PerMinute(7)},
		{"7/Minute", penstock.PerMinute(7)},
		{"7/h", penstock.PerHour(7)},
		{"7/hr", penstock.PerHour(7)},
		{"7/hour", penstock.PerHour(7)},
		{"7/d", penstock.PerDay(7)},
		{"7/day", penstock.PerDay(7)},
		{"7/w", every("7d", 7*day, 7)},
		{"7 per week", every("7d", 7*day, 7)},
		{"7/ms", every("1ms", time.Millisecond, 7)},
		{"7/us", every("1us", time.Microsecond, 7)},
		{"7/µs", every("1us", time.Microsecond, 7)},
		{"7/μs", every("1us", time.Microsecond, 7)},
		{"10 per minute", penstock.PerMinute(10)},
		{"10 PER MINUTE", penstock.PerMinute(10)},
		{"10per minute", penstock.PerMinute(10)},
		{"100 per 15 minutes", every("15m", 15*time.Minute, 100)},
		{"100 per 15min", every("15m", 15*time.Minute, 100)},
		{"5/30s", every("30s", 30*time.Second, 5)},
		{"5 / 30 s", every("30s", 30*time.Second, 5)},
		{"3/500ms", every("500ms", 500*time.Millisecond, 3)},
		{"1/250us", every("250us", 250*time.Microsecond, 1)},
		{"40 per 1h30m", every("1h30m", 90*time.Minute, 40)},
		{"40 per 1 hour 30 minutes", every("1h30m", 90*time.Minute, 40)},
		{"40/1h0m5s", every("1h0m5s", time.Hour+5*time.Second, 40)},
		{"40/1.5h", every("1h30m", 90*time.Minute, 40)},
		{"40/1.5s", every("1.5s", 1500*time.Millisecond, 40)},
		{"2/0.5s", every("500ms", 500*time.Millisecond, 2)},
		{"9/60s", penstock.PerMinute(9)},
		{"9/1m0s", penstock.PerMinute(9)},
		{"9/24h0m0s", penstock.PerDay(9)},
		{"9/2h", every("2h", 2*time.Hour, 9)},
		{"9/48h", every("2d", 2*day, 9)},
		{"9/1,000ms", penstock.PerSecond(9)},
		{"9 per 30 days", every("30d", 30*day, 9)},
		{"9 per 1w2d", every("9d", 9*day, 9)},
		{"10k/day", penstock.PerDay(10_000)},
		{"10K/day", penstock.PerDay(10_000)},
		{"10 k/day", penstock.PerDay(10_000)},
		{"1.5k/s", penstock.PerSecond(1500)},
		{"1M/hour", penstock.PerHour(1_000_000)},
		{"2.25M per week", every("7d", 7*day, 2_250_000)},
		{"2 million per day", penstock.PerDay(2_000_000)},
		{"20 thousand per day", penstock.PerDay(20_000)},
		{"1_000/h", penstock.PerHour(1000)},
		{"1_000_000/h", penstock.PerHour(1_000_000)},
		{"10,000 per day", penstock.PerDay(10_000)},
		{"1,234,567 per day", penstock.PerDay(1_234_567)},
		{"5 writes per second", penstock.PerSecond(5)},
		{"5 Requests/minute", penstock.PerMinute(5)},
		{"5k reads / 10s", every("10s", 10*time.Second, 5000)},
		{"5 k reads per hour", penstock.PerHour(5000)},
		{"5 étapes per hour", penstock.PerHour(5)},
		{"10-S", penstock.PerSecond(10)},
		{"10-M", penstock.PerMinute(10)},
		{"10-m", penstock.PerMinute(10)},
		{"1000-H", penstock.PerHour(1000)},
		{"2k-D", penstock.PerDay(2000)},
		{"3/s, burst 10", penstock.PerSecond(3).WithBurst(10)},
		{"3/s burst 10", penstock.PerSecond(3).WithBurst(10)},
		{"3/s,burst 10", penstock.PerSecond(3).WithBurst(10)},
		{"3 per second , BURST 1k ", penstock.PerSecond(3).WithBurst(1000)},
		{"3/s burst 1.5k", penstock.PerSecond(3).WithBurst(1500)},
		{"3/1h30m, burst 1,000", every("1h30m", 90*time.Minute, 3).WithBurst(1000)},
		{"10-M, burst 20", penstock.PerMinute(10).WithBurst(20)},
		{"2251799813685248/s", penstock.PerSecond(1 << 51)},
		{"1 per 2920 days", every("2920d", 2920*day, 1)},
	}
	for _, row := range rows {
		got, err := penstock.ParseRate(row.text)
		if err != nil || got != row.want {
			t.Errorf("ParseRate(%q) = %v, %v; want %v", row.text, got, err, row.want)
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
		{strings.Repeat("9", 128), []string{"character 1", `9": character 1`}}, // the longest text that is parsed, and quoted whole
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

func TestParseRateReadsEachUnitOfTime(t *testing.T) {
	for period, units := range map[time.Duration]string{
		time.Microsecond:   "us µs μs microsecond microseconds",
		time.Millisecond:   "ms msec millisecond milliseconds",
		time.Second:        "s sec secs second seconds",
		time.Minute:        "m min mins minute minutes",
		time.Hour:          "h hr hrs hour hours",
		24 * time.Hour:     "d day days",
		7 * 24 * time.Hour: "w week weeks",
	} {
		for _, unit := range strings.Fields(units) {
			text := "5 per 3 " + unit
			if got, err := penstock.ParseRate(text); err != nil || got.Count != 5 || got.Period != 3*period {
				t.Errorf("ParseRate(%q) = %v, %v; want 5 per %v", text, got, err, 3*period)
			}
		}
	}
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
