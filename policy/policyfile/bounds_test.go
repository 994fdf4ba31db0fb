package policyfile

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/testing/effort"
)

// The total size of files of values is bounded, and the error names the bound.
func TestFilesOfValuesAreBounded(t *testing.T) {
	effort.SkipUnderRace(t)
	dir := t.TempDir()
	write(t, dir+"/long.txt", "a\n"+strings.Repeat("x", maxListValueBytes+1)+"\nb\n")
	write(t, dir+"/longest.txt", strings.Repeat("x", maxListValueBytes)+" # "+strings.Repeat("c", 100)+"\n")
	write(t, dir+"/empty.txt", "\n")
	for _, size := range []int64{maxListBytes/2 + 1, maxListBytes + 1} { // sparse files, which take no space
		name := fmt.Sprintf("%s/%d", dir, size)
		write(t, name, "# ")
		if err := os.Truncate(name, size); err != nil {
			t.Fatal(err)
		}
	}
	// The name of each of these files is its size. half is a little more than half of the bound.
	half, whole := fmt.Sprint(maxListBytes/2+1), fmt.Sprint(maxListBytes+1)
	for _, c := range []struct {
		files []string
		wants []string // in the error; nil if there is none
	}{
		{[]string{"longest.txt"}, nil},
		{[]string{"long.txt"}, []string{"long.txt:2: the value has 16385 bytes; the most is 16384"}},
		{[]string{whole}, []string{"with " + whole + ", the files of values have more than 67108864 bytes"}},
		{[]string{half}, []string{half + " is not text in UTF-8"}}, // it is not too large
		{[]string{half, half}, []string{"with " + half + ", the files of values have more than 67108864 bytes"}},
		{strings.Split(strings.Repeat("empty.txt,", maxListFiles-1)+"empty.txt", ","), nil},
		{strings.Split(strings.Repeat("empty.txt,", maxListFiles)+"empty.txt", ","), []string{"there are more than 1000 files of values"}},
		{strings.Split(strings.Repeat("empty.txt,", 2*maxListFiles)+"empty.txt", ","), []string{"there are more than 1000 files of values"}},
	} {
		var text strings.Builder
		text.WriteString(aRule + "\nallow:\n")
		for _, name := range c.files {
			fmt.Fprintf(&text, "  - {header X-Key: {file: \"%s\"}}\n", name)
		}
		err := mistakesOf(dir+"/policy.yaml", text.String(), nil)
		if (err == nil) != (c.wants == nil) {
			t.Errorf("%d files, the first of them %s: the error is %v; want the messages %q", len(c.files), c.files[0], err, c.wants)
		}
		for _, want := range c.wants {
			if err != nil && strings.Count(err.Error(), want) != 1 {
				t.Errorf("%d files, the first of them %s: the error is %.300v; want %q once", len(c.files), c.files[0], err, want)
			}
		}
	}
}

// The nesting of identities is bounded, because each request goes through all levels.
func TestNestingOfIdentitiesIsBounded(t *testing.T) {
	chain := func(levels int) error {
		var text strings.Builder
		text.WriteString("identities:\n")
		for i := range levels {
			fmt.Fprintf(&text, "  i%d: {first_of: [i%d]}\n", i, i+1)
		}
		fmt.Fprintf(&text, "  i%d: {key: header X-Key}\nrules: [{name: a, per: i0, limits: [{rate: 1/s}]}]\n", levels)
		return mistakesOf("policy.yaml", text.String(), nil)
	}
	if err := chain(maxDepth); err != nil {
		t.Errorf("%d levels: the error is %v; want none", maxDepth, err)
	}
	for _, levels := range []int{maxDepth + 1, 5000} {
		if err := chain(levels); err == nil || !strings.Contains(err.Error(), "the identity is nested more than 32 levels deep") {
			t.Errorf("%d levels: the error is %.300v; want one with the bound", levels, err)
		}
	}
}
