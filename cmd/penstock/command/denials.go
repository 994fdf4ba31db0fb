package command

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/cmd/penstock/internal/console/adminapi"
	"github.com/penstock/penstock/cmd/penstock/internal/console/adminclient"
	"github.com/penstock/penstock/cmd/penstock/internal/text/printable"
)

func newDenials() *cobra.Command {
	var d denialsCommand
	c := &cobra.Command{
		Use:   "denials [flags]",
		Short: "Show which keys are denied most, or with --follow each denial as it happens",
		Long: "denials shows the keys that all instances have denied most in the last 5 minutes. With --follow it shows requests that one\n" +
			"instance denies, as they happen: at most 50 a second, and how many others it left out. It reconnects by itself, and ends\n" +
			"with Ctrl-C. Keys are masked, unless shown_identities is full and the token is sent.\n\n" +
			"Requests of clients on the deny list are not shown, because no rule applies to them: penstock status KEY tells whether a client\n" +
			"is on it, and rate_limiter_requests_total counts these requests with the outcome refused.\n" +
			"Requests that got 503 because the store did not answer (on_failure: closed) are shown only with --follow: that metric counts\n" +
			"them with the outcome failed_closed.\n\n" +
			"The address is that of --admin, or else of PENSTOCK_ADMIN_LISTEN, or else 127.0.0.1:9180. The token of PENSTOCK_OPERATOR_TOKEN\n" +
			"or PENSTOCK_OPERATOR_TOKEN_FILE is sent if it is set.\n\n" +
			"Exit status: 0 ok, 4 the operator token is wrong or missing, 5 the instance does not answer.",
		Example:           "  penstock denials\n  penstock denials --follow --rule login\n  penstock denials --follow --key key:abc -o json",
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(c *cobra.Command, _ []string) error {
			if (d.key != "" || d.ref != "") && !d.isFollowing {
				return withStatus(exitUsage, errors.New("--key and --ref work only with --follow; penstock status shows one key"))
			}
			if err := checkRef(d.ref); err != nil {
				return err
			}
			if err := checkMasked(d.key); err != nil {
				return err
			}
			return d.run(c)
		},
	}
	d.admin.add(c, "admin address of the instance (PENSTOCK_ADMIN_LISTEN)")
	c.Flags().BoolVarP(&d.isFollowing, "follow", "f", false, "show requests as they are denied")
	c.Flags().StringVar(&d.rule, "rule", "", "show only this rule")
	c.Flags().StringVar(&d.key, "key", "", "show only this key, such as key:abc; needs the operator token")
	c.Flags().StringVar(&d.ref, "ref", "", "show only the key with this ref")
	addOutput(c, &d.output)
	c.Flags().Lookup("output").Usage += "; with --follow, json prints one line for each denial"
	return c
}

type denialsCommand struct {
	admin                  adminFlags
	rule, key, ref, output string
	isFollowing            bool
}

func (d *denialsCommand) run(c *cobra.Command) error {
	instance, err := d.admin.openOrDefault()
	if err != nil {
		return err
	}
	defer instance.Close()
	if d.isFollowing {
		return d.follow(c, instance)
	}
	found := adminapi.Offenders{}
	if err := instance.send(c.Context(), "offenders?limit=100", nil, &found); err != nil {
		return err
	}
	if found.Kind == "" { // the admin API always names a kind
		return instance.errNotTheAPI()
	}
	found.Offenders = slices.DeleteFunc(found.Offenders, func(o adminapi.Offender) bool { return d.rule != "" && o.Rule != d.rule })
	if d.output == "json" {
		return writeJSON(c.OutOrStdout(), found)
	}
	return printOffenders(c.OutOrStdout(), &found)
}

func printOffenders(out io.Writer, found *adminapi.Offenders) error {
	var b strings.Builder
	if found.Identities == adminapi.ShowOff {
		b.WriteString("shown_identities is off, so no keys are kept.\n")
	}
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "limit\tkey\tdenied, at least\tat most\tref")
	for _, o := range found.Offenders {
		printable.Fprintf(w, "%s\t%s\t%d\t%d\t%s\n", o.Rule+"."+o.Limit, o.Identity, o.AtLeast, o.AtMost, o.Ref)
	}
	_ = w.Flush()
	printable.Fprintf(&b, "\nThe keys of all rules together: denials in %s: %d. Denials by limits of all clients together (per: global) have no\n"+
		"key, so they are not in this number; the page Rules of the dashboard shows them.\n"+
		"Denials of the last 3 s may be missing, and those that other instances made in the last 6 s. --follow shows denials at once.\n", found.Window, found.Total)
	_, err := io.WriteString(out, b.String())
	return err
}

const reconnectAfter = time.Second

// errOutput ends follow: its output cannot be written, for example because a pipe is closed.
var errOutput = errors.New("the output cannot be written")

// follow prints denials until the command is interrupted. Only the first connection must succeed.
func (d *denialsCommand) follow(c *cobra.Command, instance *admin) error {
	query := url.Values{}
	for name, value := range map[string]string{"rule": d.rule, "key": d.key, "ref": d.ref} {
		if value != "" {
			query.Set(name, value)
		}
	}
	path := strings.TrimSuffix(adminapi.Prefix+"denials?"+query.Encode(), "?")
	ctx := c.Context()
	for hasConnected := false; ; {
		status, text, err := instance.Follow(ctx, path, func(event string, data []byte) error { return d.print(c.OutOrStdout(), event, data) })
		hasConnected = hasConnected || status == http.StatusOK
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, errOutput):
			return err
		case errors.Is(err, adminclient.ErrNoStream):
			return instance.errNotTheAPI()
		case err == nil && !hasConnected: // the instance answered with another status than 200
			return instance.errRefused(status, text)
		case err == nil:
			err = instance.errRefused(status, text)
		case !hasConnected:
			return withStatus(exitUnreachable, err)
		}
		fmt.Fprintf(c.ErrOrStderr(), "penstock: %s; trying again\n", printable.Text(textOf(err)))
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(reconnectAfter):
		}
	}
}

func (d *denialsCommand) print(out io.Writer, event string, data []byte) error {
	var one adminapi.Denial
	if event != "denial" || json.Unmarshal(data, &one) != nil {
		return nil // an event of a later version
	}
	line := textOfDenial(&one)
	if d.output == "json" {
		text, err := json.Marshal(one) // encoded again: the received bytes may have control characters
		if err != nil {
			return nil
		}
		line = string(printable.JSON(text))
	}
	if _, err := fmt.Fprintln(out, line); err != nil {
		return fmt.Errorf("%w: %w", errOutput, err)
	}
	return nil
}

func textOfDenial(d *adminapi.Denial) string {
	text := fmt.Sprintf("%s %s %s %s", d.Time.Local().Format(time.TimeOnly), d.Rule+"."+d.Limit, d.Identity, strings.ReplaceAll(d.Outcome, "_", " "))
	switch {
	case d.RetryMS < 0: // the cost is larger than the limit
		text += " forever"
	case d.RetryMS > 0:
		text += ", retry in " + (time.Duration(d.RetryMS) * time.Millisecond).String()
	}
	text += ", by " + strings.ReplaceAll(d.Source, "_", " ")
	if d.TraceID != "" {
		text += ", trace " + d.TraceID
	}
	if d.Skipped > 0 {
		text += fmt.Sprintf(" (%d earlier ones left out)", d.Skipped)
	}
	return printable.Line(text)
}
