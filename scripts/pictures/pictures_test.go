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

// The committed pictures are those that this program draws from the saved measurements.
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
		if strings.Contains(want, "NaN") || strings.Contains(want, "%!") {
			t.Errorf("%s contains NaN, or a %%! from a mistake in a format string", name)
		}
	}
}

func TestPicturesAreValidXML(t *testing.T) {
	files, err := filepath.Glob(committed + "/*.svg")
	if err != nil || len(files) < 4 {
		t.Fatalf("the pictures are %q (error %v); want at least 4", files, err)
	}
	for _, name := range files {
		file, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		for decoder := xml.NewDecoder(file); ; {
			_, err := decoder.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%s is not valid XML: %v", name, err)
			}
		}
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
