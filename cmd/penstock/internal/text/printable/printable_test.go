package printable

import (
	"bytes"
	"encoding/json"
	"errors"
	"testing"
	"time"
)

func TestLineAndText(t *testing.T) {
	t.Parallel()
	for given, want := range map[string]struct{ line, text string }{
		"":                               {"", ""},
		"ünï 漢字 😀":                       {"ünï 漢字 😀", "ünï 漢字 😀"},
		"a\x1b[2J\tb\nc\r\n":             {"a�[2J�b�c��", "a�[2J\tb\nc�\n"},
		"\u009b\u0085\x7f\x9b\xff":       {"�����", "�����"},
		"\u202e\u2066\u200b\u2028\ufeff": {"�����", "�����"},
	} {
		if got := Line(given); got != want.line {
			t.Errorf("Line(%q) = %q; want %q", given, got, want.line)
		}
		if got := Text(given); got != want.text {
			t.Errorf("Text(%q) = %q; want %q", given, got, want.text)
		}
	}
}

func TestFprintfChangesTextsOnly(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	type kind string
	Fprintf(&out, "%-4s|%d|%.1f|%v|%v|%v|%s\n", "a\n", 7, 0.5, true, time.Second, errors.New("b\x1b"), kind("c\n"))
	if got := out.String(); got != "a�  |7|0.5|true|1s|b�|c�\n" {
		t.Errorf("printed %q; want each unprintable character replaced in texts, errors and values", got)
	}
}

func TestJSONKeepsItsMeaning(t *testing.T) {
	t.Parallel()
	const text = "é\x7f\u009b\u202e\U000e0001\x1b\n漢"
	given, err := json.MarshalIndent([]string{text}, "", "\t")
	if err != nil {
		t.Fatal(err)
	}
	safe := JSON(given)
	if Text(string(safe)) != string(safe) || !bytes.Contains(safe, []byte("é")) {
		t.Errorf("JSON returns %q; want printable text with é unchanged", safe)
	}
	var read []string
	if err := json.Unmarshal(safe, &read); err != nil || len(read) != 1 || read[0] != text {
		t.Errorf("the JSON decodes to %q, %v; want the original text", read, err)
	}
}
