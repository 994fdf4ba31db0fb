package main

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const committed = "../../docs/pictures" // folder

// TestPicturesAreCurrent compares the committed pictures with those that this program draws from
// the saved measurements.
func TestPicturesAreCurrent(t *testing.T) {
	for name, draw := range pictures {
		want, err := draw(committed)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got, err := os.ReadFile(filepath.Join(committed, name))
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != want {
			t.Errorf("docs/pictures/%s is not what this program draws; run make pictures", name)
		}
		for decoder := xml.NewDecoder(strings.NewReader(want)); ; {
			_, err := decoder.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%s is not valid XML: %v", name, err)
			}
		}
		if strings.Contains(want, "NaN") || strings.Contains(want, "%!") {
			t.Errorf("%s contains NaN, or a %%! from a mistake in a format string", name)
		}
	}
}

func TestFixedWindowAdmitsTwiceTheLimitAtABoundary(t *testing.T) {
	text, err := boundary()
	if err != nil || !strings.Contains(text, "at most 200 in 60 seconds") {
		t.Errorf("the picture has no text \"at most 200 in 60 seconds\", which is the result of a fixed window (error %v)", err)
	}
}

func TestMissingMeasurementsAreAnError(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"outage.json": "{}", "bench.json": "{}"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, draw := range []func(string) (string, error){outage, load} {
		if _, err := draw(dir); err == nil {
			t.Error("a picture drawn without measurements returns no error; want one")
		}
	}
}
