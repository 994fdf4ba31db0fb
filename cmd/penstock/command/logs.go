package command

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/penstock/penstock/cmd/penstock/internal/text/printable"
	"github.com/penstock/penstock/cmd/penstock/internal/tools/accesslog"
	"github.com/penstock/penstock/internal/wording"
)

// A logCommand reads access logs.
type logCommand struct {
	reportFlags
	format, identities string
}

func (l *logCommand) addFlags(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&l.format, "format", "", "format of the logs: a name, a log_format of nginx, or a regular expression with groups such as (?P<remote_addr>\\S+)")
	f.StringVar(&l.identities, "identities", "masked", "how the report shows keys: masked or full")
	l.reportFlags.add(c)
}

func (l *logCommand) showsIdentities() bool { return l.identities == "full" }

// A logReport is what a command has found in logs.
type logReport interface {
	shownReport
	log() *accesslog.Stats
}

// run reads logs, and writes the report that find returns.
func (l *logCommand) run(c *cobra.Command, files []string, find func(*accesslog.Reader) (logReport, error)) error {
	var format *accesslog.Format
	var err error
	switch {
	case l.identities != "full" && l.identities != "masked":
		err = fmt.Errorf("--identities is %q; write masked or full", wording.Clip(l.identities))
	case l.format != "":
		format, err = accesslog.NewFormat(l.format)
	}
	if err != nil {
		return withStatus(exitUsage, err)
	}
	log, err := accesslog.Open(files, c.InOrStdin(), format)
	if err != nil {
		return withStatus(exitInvalid, fmt.Errorf("cannot read the log: %w", err))
	}
	defer log.Close()
	hide := showProgress(c.ErrOrStderr(), log)
	report, err := find(log)
	hide()
	if err != nil {
		return err
	}
	if err := checkLog(report.log()); err != nil {
		return err
	}
	return l.write(c.OutOrStdout(), report)
}

// showProgress shows how much of a log is read, if stderr is a terminal. The caller must call hide
// before it prints.
func showProgress(stderr io.Writer, log *accesslog.Reader) (hide func()) {
	file, isFile := stderr.(*os.File)
	if !isFile || !term.IsTerminal(int(file.Fd())) {
		return func() {}
	}
	log.OnRead, hide = progressTo(file)
	return hide
}

// progressTo returns a function that writes a line about the progress at most every half second,
// and one that clears the line.
func progressTo(to io.Writer) (show func(read, total int64), hide func()) {
	const clear = "\r\x1b[K"
	last := time.Now()
	show = func(read, total int64) {
		if time.Since(last) < 500*time.Millisecond {
			return
		}
		last = time.Now()
		of := ""
		if total > 0 {
			of = fmt.Sprintf(" of %.1f MB (%d %%)", float64(total)/1e6, min(read*100/total, 100))
		}
		fmt.Fprintf(to, clear+"%.1f MB%s read", float64(read)/1e6, of)
	}
	return show, func() { fmt.Fprint(to, clear) }
}

// maxLateShare is the part of the requests that may be late. More would distort the result.
const maxLateShare = 0.01

// checkLog returns an error if no line of a log was read as a request, or if the log is not in the
// order of time.
func checkLog(log *accesslog.Stats) error {
	switch {
	case log.Requests == 0:
		return withStatus(exitInvalid, fmt.Errorf("no line of the log is a request: %d of %d lines have another format; check --format", log.Rejected, log.Lines))
	case float64(log.Late) > maxLateShare*float64(log.Requests):
		return withStatus(exitInvalid, fmt.Errorf("the log is not in the order of time: %s of the requests stand more than a minute behind later ones. Give the files as separate arguments, or sort the lines by time", share(log.Late, log.Requests)))
	}
	return nil
}

// printLog prints what was read. denied429 is how many requests the log says were denied.
func printLog(out io.Writer, log *accesslog.Stats, denied429 int64) {
	for _, f := range log.Files {
		printable.Fprintf(out, "%s: format %s\n", f.Name, f.Format)
		if f.Unread != "" {
			printable.Fprintf(out, "note: the lines go on with fields that this format does not have, such as %q; write --format with your log_format to read them\n", wording.ClipAt(f.Unread, 60))
		}
	}
	printable.Fprintf(out, "%d requests from %s to %s", log.Requests, log.First.UTC().Format(timeLayout), log.Last.UTC().Format(timeLayout)+" UTC")
	if log.Resolution > 0 {
		printable.Fprintf(out, ", times in steps of %s", wording.Period(log.Resolution))
		if log.Coarsest > log.Resolution {
			printable.Fprintf(out, " to %s", wording.Period(log.Coarsest))
		}
	}
	fmt.Fprintln(out)
	if log.Rejected > 0 {
		printable.Fprintf(out, "warning: %s of the lines are no requests:\n", share(log.Rejected, log.Lines))
		for _, e := range log.Examples {
			printable.Fprintf(out, "  %s:%d: %s\n", e.File, e.Line, e.Text)
		}
	}
	if log.Late > 0 {
		printable.Fprintf(out, "warning: %s of the requests stand more than a minute behind later ones; they count at the time of the requests around them\n", share(log.Late, log.Requests))
	}
	if denied429 > 0 {
		printable.Fprintf(out, "note: %s of the requests were answered with 429 already; their clients may have held back\n", share(denied429, log.Requests))
	}
}

const timeLayout = "2006-01-02 15:04:05"

func stamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(timeLayout)
}

// share writes a count and its percentage.
func share(n, of int64) string {
	percent := strconv.FormatFloat(float64(n)*100/float64(max(of, 1)), 'f', 2, 64)
	return fmt.Sprintf("%d (%s %%)", n, strings.TrimSuffix(strings.TrimRight(percent, "0"), "."))
}
