package doctor

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/penstock/penstock/cmd/penstock/internal/text/printable"
)

// Print writes the report as text: a line for each check, followed by the consequence and the
// remedy. Checks that are ok on several servers share a line. Those of regions do not, because each
// line names its region.
func (r *Report) Print(out io.Writer) error {
	var b strings.Builder
	printable.Fprintf(&b, "store %s (%s), keys %s…\n\n", r.Store, kinds[r.Kind], r.Prefix)
	counts := make(map[Status]int)
	for i := range r.Checks {
		counts[r.Checks[i].Status]++
	}
	for _, name := range Names {
		r.printChecks(&b, name)
	}
	b.WriteString("\n" + conclusion(counts) + "\n")
	written := "Nothing"
	if slices.ContainsFunc(r.Checks, func(c Check) bool { return c.Name == "decisions" }) {
		written = "Only " + r.Prefix + "{doctor…}self-test"
	}
	printable.Fprintf(&b, "%s sent, besides those that open and close connections. %s was written.\n", wereSent(r.Commands), written)
	_, err := io.WriteString(out, b.String())
	return err
}

func wereSent(commands int64) string {
	if commands == 1 {
		return "1 command was"
	}
	return count(commands, "command") + " were"
}

var kinds = map[string]string{"single": "one server", "sentinel": "behind Sentinel", "cluster": "a Cluster"}

// printChecks prints the checks of a name: first one line for all that are ok, then the others.
func (r *Report) printChecks(b *strings.Builder, name string) {
	var good []Check
	for _, c := range r.Checks {
		if c.Name == name && c.Status == OK {
			good = append(good, c)
		}
	}
	if len(good) > 1 && name != "regions" {
		good[0].Summary = fmt.Sprintf("%s; the same on %d more", good[0].Summary, len(good)-1)
		good = good[:1]
	}
	for _, c := range good {
		printable.Fprintf(b, "%-8s %-12s %s\n", OK, name, c.Summary)
	}
	hasManyServers := len(r.servers()) > 1
	for _, c := range r.Checks {
		if c.Name != name || c.Status == OK {
			continue
		}
		summary := c.Summary
		if hasManyServers && c.Server != "" && !strings.Contains(summary, c.Server) {
			summary = c.Server + ": " + summary
		}
		printable.Fprintf(b, "%-8s %-12s %s\n", c.Status, name, summary)
		const belowSummary = 8 + 1 + 12 // characters before the summary, less a space
		if c.Why != "" {
			printable.Fprintf(b, "%*s why: %s\n", belowSummary, "", c.Why)
		}
		if c.Remedy != "" {
			printable.Fprintf(b, "%*s fix: %s\n", belowSummary, "", c.Remedy)
		}
	}
}

func (r *Report) servers() map[string]bool {
	all := make(map[string]bool)
	for _, c := range r.Checks {
		if c.Server != "" {
			all[c.Server] = true
		}
	}
	return all
}

func conclusion(counts map[Status]int) string {
	if counts[Failed]+counts[Warning]+counts[Unknown] == 0 {
		return "The store is ready for limits."
	}
	var parts []string
	for _, s := range []struct {
		status Status
		noun   string
	}{{Failed, "problem"}, {Warning, "warning"}, {Unknown, ""}} {
		if n := counts[s.status]; n > 0 && s.status == Unknown {
			parts = append(parts, fmt.Sprintf("%d unknown", n))
		} else if n > 0 {
			parts = append(parts, count(int64(n), s.noun))
		}
	}
	return strings.Join(parts, ", ") + "."
}
