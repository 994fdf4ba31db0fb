package command

import (
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/penstock/penstock/cmd/penstock/internal/console/top"
)

func newTop() *cobra.Command {
	var t topCommand
	c := &cobra.Command{
		Use:   "top [flags]",
		Short: "Show live counts, denied keys, and the state of the store",
		Long: "top shows a running instance, and those that share its store: rules with their rates, the keys that are denied most, the\n" +
			"instances, and the store. While the store fails, it shows what decides instead, and how much the limits may admit. It reads\n" +
			"the admin API twice a second, reconnects by itself, and ends with Ctrl-C. If the output is not a terminal, it prints\n" +
			"once, and cuts no text unless COLUMNS is set.\n\n" +
			"The address is that of --admin, or else of PENSTOCK_ADMIN_LISTEN, or else 127.0.0.1:9180. The token of PENSTOCK_OPERATOR_TOKEN\n" +
			"or PENSTOCK_OPERATOR_TOKEN_FILE is sent if it is set. Rates are those of the last 10 seconds, of all instances.\n\n" +
			"Exit status: 0 ok, 4 the operator token is wrong or missing, 5 the instance does not answer.",
		Example:           "  penstock top\n  penstock top --admin https://gate-1:9180 --admin-ca ca.pem --rule login\n  penstock top --once -o json",
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(c *cobra.Command, _ []string) error { return t.run(c) },
	}
	t.admin.add(c, "admin address of the instance (PENSTOCK_ADMIN_LISTEN)")
	c.Flags().StringVar(&t.rule, "rule", "", "show only this rule")
	c.Flags().BoolVar(&t.isOnce, "once", false, "print once, and exit")
	addOutput(c, &t.output)
	c.Flags().Lookup("output").Usage += "; json prints once"
	return c
}

type topCommand struct {
	admin        adminFlags
	rule, output string
	isOnce       bool

	instance *admin // set by run
}

func (t *topCommand) run(c *cobra.Command) (err error) {
	if t.instance, err = t.admin.openOrDefault(); err != nil {
		return err
	}
	defer t.instance.Close()
	terminal, isFile := c.OutOrStdout().(*os.File)
	isTerminal := isFile && term.IsTerminal(int(terminal.Fd()))
	if isTerminal && !t.isOnce && t.output == "text" {
		return t.follow(c.Context(), terminal, func() (width, height int, err error) { return term.GetSize(int(terminal.Fd())) })
	}
	s, err := t.read(c.Context())
	if err != nil {
		return err
	}
	if t.rule != "" && !s.HasRule(t.rule) {
		return withStatus(exitUsage, fmt.Errorf("the policy of %s has no rule %q", t.admin.Address, t.rule))
	}
	if t.output == "json" {
		return writeJSON(c.OutOrStdout(), s)
	}
	var view top.View
	if width, err := strconv.Atoi(os.Getenv("COLUMNS")); err == nil && width > 0 {
		view.Width = width
	} else if isFile {
		if width, _, err := term.GetSize(int(terminal.Fd())); err == nil {
			view.Width = width
		}
	}
	_, err = io.WriteString(c.OutOrStdout(), strings.Join(s.Print(view), "\n")+"\n")
	return err
}

// get requests a path of the admin API, for package top.
func (t *topCommand) get(ctx context.Context, path string, answer any) error {
	return t.instance.send(ctx, path, nil, answer)
}

const (
	topInterval  = 500 * time.Millisecond // between two reads of the state
	readsPerFull = 2                      // one of this many reads is of the whole state
	topTimeout   = 3 * time.Second        // for one read
)

// follow shows the instance until ctx ends. size returns the size of the terminal.
func (t *topCommand) follow(ctx context.Context, terminal io.Writer, size func() (width, height int, err error)) error {
	const isFull = true
	latest, err := t.readSnapshot(ctx, nil, isFull)
	if err != nil {
		return err
	}
	fmt.Fprint(terminal, "\x1b[?1049h\x1b[?25l")       // switch to the alternate screen, hide the cursor
	defer fmt.Fprint(terminal, "\x1b[?25h\x1b[?1049l") // show the cursor, switch back
	tick := time.NewTicker(topInterval)
	defer tick.Stop()
	answeredAt := time.Now()
	for i := 1; ; i++ {
		view := top.View{Width: 80, Height: 24, IsBold: os.Getenv("NO_COLOR") == ""} // the usual size, if the terminal does not report its own
		if width, height, err := size(); err == nil {
			view.Width, view.Height = width, height
		}
		if err != nil { // the error of the latest read
			view.Notice = fmt.Sprintf("NO ANSWER for %v, trying again: %s", time.Since(answeredAt).Truncate(time.Second), textOf(err))
		}
		if err := draw(terminal, latest.Print(view)); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		var next *top.Snapshot
		if next, err = t.readSnapshot(ctx, latest, i%readsPerFull == 0); err == nil {
			latest, answeredAt = next, time.Now()
		}
	}
}

// readSnapshot reads the whole state if isFull is true. Otherwise it refreshes only the parts of
// the latest snapshot that change often.
func (t *topCommand) readSnapshot(ctx context.Context, latest *top.Snapshot, isFull bool) (*top.Snapshot, error) {
	ctx, cancel := context.WithTimeout(ctx, topTimeout)
	defer cancel()
	if isFull {
		return t.read(ctx)
	}
	next := *latest
	return &next, next.Refresh(ctx, t.get)
}

func (t *topCommand) read(ctx context.Context) (*top.Snapshot, error) {
	s, err := top.Read(ctx, t.get, t.rule)
	if err == nil && s.State.Time.IsZero() {
		err = t.instance.errNotTheAPI()
	}
	return s, err
}

// draw overwrites the screen in one write, so that the screen does not flicker.
func draw(to io.Writer, lines []string) error {
	const home, clearToLineEnd, clearBelow = "\x1b[H", "\x1b[K", "\x1b[J"
	_, err := io.WriteString(to, home+strings.Join(lines, clearToLineEnd+"\r\n")+clearToLineEnd+clearBelow)
	return err
}
