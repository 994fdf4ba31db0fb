package command

import (
	"bufio"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/cmd/penstock/internal/keylimits"
	"github.com/penstock/penstock/redisstore"
)

const maxReason = 200 // letters of --reason

// newReset makes the command that resets limits of a key.
func newReset(algorithms []*algorithm.Algorithm) *cobra.Command {
	var r reset
	given := storeFlags{algorithms: algorithms}
	c := &cobra.Command{
		Use:   "reset [flags] --reason TEXT KEY",
		Short: "Let a client use its limits again from the beginning",
		Long: "reset clears the counters of one key: all limits, or those of one rule. Shadows and candidates are cleared too, so that\n" +
			"they stay comparable. It resets exactly this key, and never the counters of all clients together, unless KEY is global.\n" +
			"It asks first; --yes answers for you, and is needed if the input is no terminal.\n\n" +
			"For each limit it writes an audit line in JSON to standard error: when, who, what, before, after, and why. The key is\n" +
			"masked there, with a hash that tells whether two lines are about one key.\n\n" +
			"Running instances may repeat a denial from their caches for deny_cache_ttl (1s). Units that they have leased stay with them.\n\n" +
			"Exit status: 0 reset, 3 nothing was used, 5 the store gives no answer.",
		Example: "  penstock reset key:abc --reason support-4711 --store redis://localhost:6379 --config rules.yaml\n" +
			"  penstock reset ip:192.0.2.1 --rule login --reason 'wrong password manager' --yes",
		Args:              needsArgument(1, 1, "one key, as in: penstock reset key:abc --reason support-4711"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(c *cobra.Command, args []string) error {
			if err := checkOutput(r.output, "text", "json"); err != nil {
				return err
			}
			if err := checkReason(r.reason); err != nil {
				return coded(exitUsage, err)
			}
			k, err := openKey(c, &given, args[0], r.rule)
			if err != nil {
				return err
			}
			defer k.close()
			return r.run(c, k)
		},
	}
	given.add(c)
	c.Flags().StringVar(&r.rule, "rule", "", "only the limits of this rule")
	c.Flags().StringVar(&r.reason, "reason", "", "why; it stands in the audit line")
	c.Flags().BoolVar(&r.isConfirmed, "yes", false, "do not ask")
	c.Flags().StringVarP(&r.output, "output", "o", "text", "output format: text or json")
	_ = c.RegisterFlagCompletionFunc("output", completeOutput)
	return c
}

func checkReason(reason string) error {
	switch {
	case strings.TrimSpace(reason) == "":
		return errors.New("the reason is missing; write --reason TEXT, such as the number of a ticket")
	case len([]rune(reason)) > maxReason || strings.ContainsFunc(reason, unicode.IsControl):
		return fmt.Errorf("the reason must have at most %d letters, and be one line", maxReason)
	}
	return nil
}

type reset struct {
	rule, reason, output string
	isConfirmed          bool
}

// A resetLimit is a limit that was reset, or not.
type resetLimit struct {
	Rule   string `json:"rule"`
	Limit  string `json:"limit"`
	Kind   string `json:"kind"`
	Before usage  `json:"before"`
	After  usage  `json:"after"`
}

type usage struct {
	Used int64 `json:"used"`
	Left int64 `json:"left"`
}

func (r *reset) run(c *cobra.Command, k *keyStore) error {
	if _, err := k.read(c.Context()); err != nil {
		return err
	}
	limits := k.ownLimits()
	done := []resetLimit{}
	if slices.ContainsFunc(limits, func(l *keylimits.Limit) bool { return l.Used > 0 }) {
		if err := r.confirm(c, k, limits); err != nil {
			return err
		}
		for _, l := range limits {
			if l.Used == 0 {
				continue
			}
			one, err := r.resetOne(c, k, l)
			if err != nil {
				return err
			}
			done = append(done, one)
		}
	}
	if r.output == "json" {
		if err := writeJSON(c.OutOrStdout(), struct {
			Identity string       `json:"identity"`
			Reset    []resetLimit `json:"reset"`
		}{k.key, done}); err != nil {
			return err
		}
	} else {
		r.print(c.OutOrStdout(), k, done)
	}
	if len(done) == 0 {
		return silent(exitDenied)
	}
	return nil
}

// ownLimits returns the limits of the key, each once: tiers share a counter. The one of the tier
// with the most units is in it.
func (k *keyStore) ownLimits() (limits []*keylimits.Limit) {
	for _, l := range k.limits {
		i := slices.IndexFunc(limits, func(other *keylimits.Limit) bool { return other.Name() == l.Name() })
		switch {
		case i < 0:
			limits = append(limits, l)
		case l.Used > limits[i].Used:
			limits[i] = l
		}
	}
	return limits
}

// confirm asks the operator, unless --yes is given.
func (r *reset) confirm(c *cobra.Command, k *keyStore, limits []*keylimits.Limit) error {
	if r.isConfirmed {
		return nil
	}
	in, isFile := c.InOrStdin().(*os.File)
	if !isFile || !term.IsTerminal(int(in.Fd())) {
		return coded(exitUsage, errors.New("the input is no terminal, so nothing was asked or reset; write --yes"))
	}
	var names []string
	for _, l := range limits {
		if l.Used > 0 {
			names = append(names, fmt.Sprintf("%s (%d used)", l.Name(), l.Used))
		}
	}
	fmt.Fprintf(c.ErrOrStderr(), "Reset %s of %s? [y/N] ", strings.Join(names, ", "), k.key)
	line, err := bufio.NewReader(io.LimitReader(in, 1<<10)).ReadString('\n')
	if answer := strings.ToLower(strings.TrimSpace(line)); err != nil || answer != "y" && answer != "yes" {
		return coded(exitUsage, errors.New("nothing was reset"))
	}
	return nil
}

// resetOne resets a limit and writes its audit line. It writes the line also if the reset fails,
// because the counter may be cleared.
func (r *reset) resetOne(c *cobra.Command, k *keyStore, l *keylimits.Limit) (done resetLimit, err error) {
	done = resetLimit{Rule: l.Rule, Limit: l.Limit, Kind: l.Kind, Before: usage{l.Used, l.Left}}
	err = k.call(c.Context(), func(ctx context.Context) error {
		if err := l.Reset(ctx, k.store); err != nil {
			return err
		}
		return l.Read(ctx, k.store)
	})
	line := auditLine{
		Audit: true, Time: time.Now().UTC(), ID: rand.Text(), Actor: actorOfCommandLine(), Action: "reset",
		Target: auditTarget{l.Rule, l.Limit, keylimits.Masked(k.key), hashOfKey(k.key, k.secret)}, Before: done.Before, Reason: r.reason, Result: "ok",
	}
	if err != nil {
		line.Result = "unknown"
		err = fmt.Errorf("reset %s: %w", l.Name(), err)
	} else {
		done.After = usage{l.Used, l.Left}
		line.After = &done.After
	}
	encoder := json.NewEncoder(c.ErrOrStderr())
	encoder.SetEscapeHTML(false)
	return done, cmp.Or(encoder.Encode(line), err)
}

// An auditLine says who has changed what, and why.
type auditLine struct {
	Audit  bool        `json:"audit"` // always true; tells it from lines of the log
	Time   time.Time   `json:"time"`
	ID     string      `json:"id"`
	Actor  actor       `json:"actor"`
	Action string      `json:"action"`
	Target auditTarget `json:"target"`
	Before usage       `json:"before"`
	After  *usage      `json:"after,omitempty"`
	Reason string      `json:"reason"`
	Result string      `json:"result"` // ok, or unknown: the answer of the store was lost
}

type actor struct {
	Kind string `json:"kind"` // cli
	Name string `json:"name"` // of the user at this machine
	Host string `json:"host"`
}

type auditTarget struct {
	Rule  string `json:"rule"`
	Limit string `json:"limit"`
	Key   string `json:"key"`  // masked
	Hash  string `json:"hash"` // of the key; with key_hash_secret, the name that it has in Redis
}

func actorOfCommandLine() actor {
	a := actor{Kind: "cli"}
	if u, err := user.Current(); err == nil {
		a.Name = u.Username
	}
	a.Host, _ = os.Hostname()
	return a
}

// hashOfKey tells whether two lines are about one key.
func hashOfKey(key string, secret []byte) string {
	if len(secret) > 0 {
		return string(redisstore.NewNames(redisstore.Options{Secret: secret}).Append(nil, key))
	}
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:16])
}

func (r *reset) print(out io.Writer, k *keyStore, done []resetLimit) {
	if len(done) == 0 {
		fmt.Fprintf(out, "%s has used nothing; nothing was reset.\n", k.key)
		return
	}
	denyFor, hasLease := time.Duration(0), false
	for _, l := range k.limits {
		denyFor, hasLease = max(denyFor, l.DenyFor()), hasLease || l.HasLease()
	}
	for _, one := range done {
		fmt.Fprintf(out, "%s.%s was reset: %d used before, %d left now\n", one.Rule, one.Limit, one.Before.Used, one.After.Left)
	}
	if denyFor > 0 {
		fmt.Fprintf(out, "Running instances may deny from their caches for up to %v more.\n", denyFor)
	}
	if hasLease {
		fmt.Fprintln(out, "Units that instances have leased stay with them.")
	}
}
