package boundedfile

import (
	"os"
	"strings"
	"testing"
	"time"
)

// A file that waits for more bytes, as /proc/kmsg does, ends with an error.
func TestReadOfAFileWithoutEndIsBounded(t *testing.T) {
	t.Parallel()
	file, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	defer writer.Close()
	if _, err := writer.WriteString("a line\n"); err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	if _, err := copyAll(&text, file, 100, time.Millisecond); err == nil || !strings.Contains(err.Error(), "does not end within 1ms; write the name of a regular file") {
		t.Errorf("the read returns %q, %v; want that the file does not end", text.String(), err)
	}
}
