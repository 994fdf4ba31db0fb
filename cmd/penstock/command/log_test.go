package command

import (
	"bytes"
	"encoding/json"
	"testing"
	"unicode"

	"github.com/penstock/penstock/cmd/penstock/internal/serve/settings"
)

// TestLogHasNoControlCharacters: log lines may contain texts of clients.
func TestLogHasNoControlCharacters(t *testing.T) {
	const hostile = "a\x00\x07\x1b[2J\r\n\x7f\u0080\u0085\u009b2J\u009dé"
	for _, format := range []string{"text", "json"} {
		var out bytes.Buffer
		const isStderr = false
		log := newLog(settings.Settings{LogFormat: format, LogLevel: "info"}, &out, isStderr)
		log.Info(hostile, "err", hostile)
		line := bytes.TrimSuffix(out.Bytes(), []byte("\n"))
		if bytes.ContainsFunc(line, unicode.IsControl) {
			t.Errorf("format %s: the line %q has control characters", format, line)
		}
		if !bytes.Contains(line, []byte("é")) {
			t.Errorf("format %s: the line is %s; want é unchanged", format, line)
		}
		var read map[string]string
		if format == "json" && (json.Unmarshal(line, &read) != nil || read["msg"] != hostile || read["err"] != hostile) {
			t.Errorf("format %s: the line reads back as %q; want the original texts", format, read)
		}
	}
}
