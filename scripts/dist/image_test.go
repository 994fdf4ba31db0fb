package main

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

func testImage(t *testing.T) v1.Image {
	t.Helper()
	content := fileSet{
		"penstock":             {text: []byte("program"), mode: 0o755},
		"LICENSE":              {text: []byte("a")},
		"THIRD_PARTY_LICENSES": {text: []byte("b")},
	}
	r := release{
		version: "v0.1.0",
		commit:  "0123456789abcdef0123456789abcdef01234567",
		date:    time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC),
	}
	image, err := imageOf(r, platform{"linux", "arm64"}, content)
	if err != nil {
		t.Fatal(err)
	}
	return image
}

func TestImageIsValidAndAlwaysTheSame(t *testing.T) {
	image := testImage(t)
	first, err := image.Digest()
	if err != nil {
		t.Fatal(err)
	}
	stored, err := layout.Write(t.TempDir(), empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	if err := stored.AppendImage(image); err != nil {
		t.Fatal(err)
	}
	read, err := stored.Image(first)
	if err == nil {
		err = validate.Image(read)
	}
	if err != nil {
		t.Errorf("the stored image is not valid: %v", err)
	}
	if second, err := testImage(t).Digest(); second != first {
		t.Errorf("two images of the same files have the digests %v and %v (error %v); want equal digests", first, second, err)
	}
}

// TestDockerfileMakesTheSameImage compares the last stage of the Dockerfile with the image.
func TestDockerfileMakesTheSameImage(t *testing.T) {
	text, err := os.ReadFile("../../Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	unwrapped := strings.ReplaceAll(string(text), "\\\n", " ")
	_, lastStage, _ := strings.Cut(unwrapped, "\nFROM scratch\n")
	var want []string
	for line := range strings.Lines(lastStage) {
		want = append(want, strings.Join(strings.Fields(line), " "))
	}

	image := testImage(t)
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	c := config.Config
	quoted := func(words []string) string {
		text, err := json.Marshal(words)
		if err != nil {
			t.Fatal(err)
		}
		return strings.ReplaceAll(string(text), ",", ", ")
	}
	// The workflow for releases sets these two labels when it builds the Dockerfile.
	delete(c.Labels, "org.opencontainers.image.version")
	delete(c.Labels, "org.opencontainers.image.revision")
	labels := "LABEL" // the Dockerfile's line, if it has as many labels as the image
	for _, line := range want {
		if !strings.HasPrefix(line, "LABEL ") {
			continue
		}
		for _, key := range slices.Sorted(maps.Keys(c.Labels)) {
			if label := fmt.Sprintf("%s=%q", key, c.Labels[key]); !strings.Contains(line, label) {
				t.Errorf("the Dockerfile has no label %s, which the image has", label)
			}
		}
		if strings.Count(line, "=") == len(c.Labels) {
			labels = line
		}
	}
	check := c.Healthcheck
	got := []string{
		"COPY --from=build /out/penstock /usr/bin/penstock",
		"COPY --from=build /out/LICENSE /out/THIRD_PARTY_LICENSES /licenses/",
		labels,
		"ENV " + strings.Join(c.Env, " "),
		"USER " + c.User,
		"WORKDIR " + c.WorkingDir,
		"EXPOSE " + strings.ReplaceAll(strings.Join(slices.Sorted(maps.Keys(c.ExposedPorts)), " "), "/tcp", ""),
		fmt.Sprintf("HEALTHCHECK --interval=%v --timeout=%v --start-period=%v %s %s", check.Interval, check.Timeout, check.StartPeriod, check.Test[0], quoted(check.Test[1:])),
		"ENTRYPOINT " + quoted(c.Entrypoint),
		"CMD " + quoted(c.Cmd),
	}
	if !slices.Equal(got, want) {
		t.Errorf("as a Dockerfile, the image of imageOf would be\n%s\nwant what the Dockerfile has:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}

	files := mutate.Extract(image)
	defer files.Close()
	var names []string
	for r := tar.NewReader(files); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			names = append(names, h.Name)
		}
		if h.Uid != 0 || h.Mode&0o022 != 0 {
			t.Errorf("%s has owner %d and mode %o; want owner 0, and that only the owner can write", h.Name, h.Uid, h.Mode)
		}
	}
	if want := []string{"licenses/LICENSE", "licenses/THIRD_PARTY_LICENSES", "usr/bin/penstock"}; !slices.Equal(names, want) {
		t.Errorf("the image has the files %q; want %q", names, want)
	}
}
