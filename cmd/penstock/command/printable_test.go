package command

import (
	"bytes"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/penstock/penstock/cmd/penstock/internal/console/adminapi"
	"github.com/penstock/penstock/cmd/penstock/internal/console/explain"
	"github.com/penstock/penstock/cmd/penstock/internal/console/keylimits"
	"github.com/penstock/penstock/cmd/penstock/internal/tools/cases"
	"github.com/penstock/penstock/cmd/penstock/internal/tools/doctor"
)

// hostileText would clear the screen, set the title, forge a line of output, and reverse the
// direction of text. Its last letter is harmless.
const hostileText = "a\x1b[2J\x1b]0;x\a\r\nFORGED\u0085FORGED\x7f\u009b31m\u202e\u2066\u2028é"

// fill sets all texts of a value to hostileText, and numbers to 1. It gives lists two elements, and
// follows pointers to a depth of 8, because some types contain themselves.
func fill(v reflect.Value, depth int) {
	if v.Type() == reflect.TypeFor[time.Time]() {
		v.Set(reflect.ValueOf(time.Unix(1_700_000_000, 0)))
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(hostileText)
	case reflect.Int, reflect.Int64:
		v.SetInt(1)
	case reflect.Uint64, reflect.Uint32:
		v.SetUint(1)
	case reflect.Float64:
		v.SetFloat(1)
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Interface:
		if v.NumMethod() == 0 {
			v.Set(reflect.ValueOf(hostileText))
		}
	case reflect.Pointer:
		if depth < 8 {
			v.Set(reflect.New(v.Type().Elem()))
			fill(v.Elem(), depth+1)
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range 2 {
			fill(v.Index(i), depth+1)
		}
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key, depth+1)
		fill(value, depth+1)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				fill(v.Field(i), depth+1)
			}
		}
	}
}

// hostile returns a value whose texts are all hostileText.
func hostile[T any]() *T {
	v := new(T)
	fill(reflect.ValueOf(v).Elem(), 0)
	return v
}

// checkPrintable checks that each line of a text has printable characters only, and is not forged.
func checkPrintable(t *testing.T, name, text string) {
	t.Helper()
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if at := strings.IndexFunc(line, func(r rune) bool { return r != '\t' && !unicode.IsPrint(r) }); at >= 0 || strings.HasPrefix(line, "FORGED") {
			t.Errorf("%s: the line %q has unprintable characters, or is forged", name, line)
		}
	}
}

// startHostileAdmin starts a server with the paths of the admin API. All texts of its answers are
// hostile. With a status other than 200 it returns problems.
func startHostileAdmin(t *testing.T, status int, isCorrupt bool) string {
	limit := hostile[keylimits.Limit]()
	reset := &keylimits.Reset{Reset: []string{limit.Name()}, Before: []keylimits.Limit{*limit}, After: []keylimits.Limit{*limit}}
	key := hostile[adminapi.Key]()
	for i := range key.Limits {
		key.Limits[i].IsCorrupt = isCorrupt // a reset ends at a corrupt limit
	}
	answers := map[string]any{
		"rules": hostile[adminapi.Rules](), "offenders": hostile[adminapi.Offenders](), "instances": hostile[adminapi.Instances](), "state": hostile[adminapi.State](),
		"history": hostile[adminapi.History](), "key": key, "key/reset": reset,
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		path := strings.TrimPrefix(q.URL.Path, adminapi.Prefix)
		if status == http.StatusOK && path == "denials" {
			w.Header().Set("Content-Type", "text/event-stream")
			text, _ := json.Marshal(hostile[adminapi.Denial]())
			_, _ = w.Write([]byte("event: denial\ndata: " + string(text) + "\n\n"))
			return
		}
		w.WriteHeader(status)
		switch answer, ok := answers[path]; {
		case status != http.StatusOK:
			_ = json.NewEncoder(w).Encode(adminapi.Problem{Title: hostileText, Detail: strings.Repeat(hostileText, 1000)})
		case ok:
			_ = json.NewEncoder(w).Encode(answer)
		default:
			_, _ = w.Write([]byte(hostileText))
		}
	}))
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

// TestInstancesCannotControlTheTerminal: commands print no control characters that an instance
// sends, neither as text nor as JSON.
func TestInstancesCannotControlTheTerminal(t *testing.T) {
	t.Parallel()
	for _, status := range []int{http.StatusOK, http.StatusForbidden, http.StatusServiceUnavailable} {
		admin := startHostileAdmin(t, status, true)
		for _, line := range []string{"denials", "denials -o json", "top --once", "top -o json", "status key:a", "status key:a -o json", "status --ref a", "healthcheck"} {
			_, out, errors := command(append(strings.Fields(line), "--admin", admin)...)
			checkPrintable(t, line, out)
			checkPrintable(t, line+": errors", errors)
			if hasOutput := out != ""; hasOutput != (status == http.StatusOK) {
				t.Errorf("%s, status %d: standard output is %q; want a text only for status 200", line, status, out)
			}
			if len(errors) > 10_000 {
				t.Errorf("%s, status %d: standard error has %d bytes and begins with %.100q; want at most 10,000 bytes", line, status, len(errors), errors)
			}
			if strings.HasSuffix(line, "json") && status == http.StatusOK {
				var read any
				missing := missingIn(out, `\u001b[2J`, `\u202e`, "é")
				if err := json.Unmarshal([]byte(out), &read); err != nil || missing != nil {
					t.Errorf("%s: %v in %s\nwithout %q; want JSON with escapes for unprintable characters only", line, err, out, missing)
				}
			}
		}
	}
}

func TestResetPrintsNothingHostile(t *testing.T) {
	t.Setenv("PENSTOCK_OPERATOR_TOKEN", "a-token-of-operators")
	for _, status := range []int{http.StatusOK, http.StatusForbidden} {
		admin := startHostileAdmin(t, status, false)
		for _, line := range []string{"reset key:a --reason r --yes", "reset key:a --reason r --yes -o json", "reset key:a --reason r --rule a --limit b --yes"} {
			_, out, errors := command(append(strings.Fields(line), "--admin", admin)...)
			checkPrintable(t, line, out)
			checkPrintable(t, line+": errors", errors)
			if out+errors == "" {
				t.Errorf("%s, status %d: nothing is printed; want a text", line, status)
			}
			hasLimit := strings.Contains(line, "--limit") // the server has no limit of this name
			if status == http.StatusOK && !hasLimit && out == "" {
				t.Errorf("%s, status %d: nothing is printed to standard output, and %q to standard error; want a report", line, status, errors)
			}
		}
	}
}

// Texts of stores, policies and requests cannot control the terminal.
func TestReportsPrintNothingHostile(t *testing.T) {
	t.Parallel()
	for name, print := range map[string]func(io.Writer) error{
		"doctor":  hostile[doctor.Report]().Print,
		"explain": hostile[explain.Report]().Print,
		"status":  hostile[keyReport]().print,
		"test": func(out io.Writer) error {
			(&caseReport{Unreached: []string{hostileText}, Cases: []cases.Result{{File: hostileText, Name: hostileText}, *hostile[cases.Result]()}}).print(out)
			return nil
		},
		"validate": func(out io.Writer) error {
			const isVerbose = true
			(&result{isValid: true, found: []finding{*hostile[finding]()}, summary: hostileText}).print(out, hostileText, isVerbose)
			return nil
		},
		"json": func(out io.Writer) error { return writeJSON(out, hostile[adminapi.Key]()) },
	} {
		var out bytes.Buffer
		if err := print(&out); err != nil || out.Len() == 0 {
			t.Errorf("%s: printed %q, %v; want a text and no error", name, &out, err)
		}
		checkPrintable(t, name, out.String())
	}
}

// TestColoredLogHasNoEscapesOfClients: colors are the only escape sequences of a log in a terminal.
func TestColoredLogHasNoEscapesOfClients(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	newColoredLog(&out, slog.LevelInfo).Error(hostileText, "text", hostileText, "err", io.ErrUnexpectedEOF, "any", []string{hostileText})
	text := out.String()
	if strings.Count(text, "\n") != 1 || strings.ContainsAny(text, "\a\r\x7f\u009b\u202e\u2066\u2028") {
		t.Errorf("the log line is %q; want one line without the control characters of its texts", text)
	}
	if strings.Contains(text, "\x1b[2J") || strings.Contains(text, "\x1b]") {
		t.Errorf("the log line is %q; want no escape sequences of its texts", text)
	}
	if missing := missingIn(text, io.ErrUnexpectedEOF.Error(), "é"); missing != nil {
		t.Errorf("the log line is %q, without %q; want printable texts unchanged", text, missing)
	}
}
