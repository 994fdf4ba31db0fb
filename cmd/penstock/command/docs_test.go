package command

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/cmd/penstock/internal/settings"
)

// TestConfigurationPageHasTheSettings: the page has the table of the settings, with the bounds that
// settings.Load enforces.
func TestConfigurationPageHasTheSettings(t *testing.T) {
	text, err := os.ReadFile("../../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	const head = "| in `server` | flag | variables | takes | default | bounds | |\n| --- | --- | --- | --- | --- | --- | --- |\n"
	_, table, found := strings.Cut(string(text), head)
	if !found {
		t.Fatalf("docs/configuration.md has no table with the head\n%s", head)
	}
	table, _, _ = strings.Cut(table, "\n\n")
	rows := strings.Split(strings.TrimSuffix(table, "\n"), "\n")

	var want []string
	bounds := 0
	for _, row := range settings.Table {
		cells := []string{"", "`--" + row.Name + "`", variables(row), takes(row), quoted(row.Default), boundsOf(t, row, &bounds), row.Help}
		if row.NotFile {
			want = append(want, "| not in the file | "+strings.Join(cells[1:], " | ")+" |")
		} else {
			cells[0] = quoted(row.Key())
			want = append(want, "| "+strings.Join(cells, " | ")+" |")
		}
	}
	if strings.Join(rows, "\n") != strings.Join(want, "\n") {
		t.Errorf("docs/configuration.md: the table of settings should be\n%s%s", head, strings.Join(want, "\n"))
	}
	t.Logf("counted: %d settings of the docs, with %d bounds", len(want), bounds)
}

func variables(row settings.Row) string {
	list := []string{quoted(row.Env())}
	if row.Secret {
		list = append(list, quoted(row.Env()+"_FILE"))
	}
	for _, alias := range row.Aliases {
		list = append(list, quoted(alias.Name))
		if row.Secret && alias.Read == nil {
			list = append(list, quoted(alias.Name+"_FILE"))
		}
	}
	return strings.Join(list, ", ")
}

func takes(row settings.Row) string {
	if row.Value == "" {
		return "true, false"
	}
	return strings.ReplaceAll(row.Value, "|", ", ")
}

func quoted(text string) string {
	if text == "" {
		return ""
	}
	return "`" + text + "`"
}

// boundsOf finds the bounds of a number, a size or a duration, by trying values.
func boundsOf(t *testing.T, row settings.Row, n *int) string {
	accepts := func(text string) bool {
		flags := map[string]string{"upstream": "http://localhost:1", row.Name: text}
		_, err := settings.Load(settings.Sources{Flags: flags})
		return err == nil
	}
	var spell func(int64) string
	var steps []string
	switch row.Value {
	case "duration":
		spell, steps = func(n int64) string { return time.Duration(n).String() }, []string{"1m", "1h", "24h"}
	case "size":
		spell, steps = func(n int64) string { return strconv.FormatInt(n, 10) }, []string{"1MB", "1048576GB"}
	case "number":
		spell, steps = func(n int64) string { return strconv.FormatInt(n, 10) }, []string{"10000", "1000000"}
	default:
		return ""
	}
	for _, most := range steps {
		if accepts(spell(inUnits(most) + 1)) {
			continue
		}
		*n += 2
		if !accepts(most) {
			break
		}
		if accepts(spell(0)) {
			return "0 to " + most
		}
		if row.Value == "number" {
			return "1 to " + most
		}
		return "above 0, up to " + most
	}
	t.Errorf("the largest allowed %s is none of %v", row.Name, steps)
	return ""
}

// inUnits converts a duration to nanoseconds, or a size to bytes.
func inUnits(text string) int64 {
	if d, err := time.ParseDuration(text); err == nil {
		return int64(d)
	}
	n, unit := int64(0), ""
	fmt.Sscanf(text, "%d%s", &n, &unit)
	return n * map[string]int64{"": 1, "MB": 1 << 20, "GB": 1 << 30}[unit]
}
