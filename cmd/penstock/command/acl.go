package command

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/cmd/penstock/internal/console/redisops"
	"github.com/penstock/penstock/cmd/penstock/internal/serve/settings"
	"github.com/penstock/penstock/cmd/penstock/internal/tools/doctor"
	"github.com/penstock/penstock/internal/redisrights"
)

var (
	aclRoles   = []string{"serve", "admin", "doctor", "metrics", "read"}
	aclFormats = []string{"setuser", "acl", "k8s"}
	aclClients = []string{"penstock", "go-redis"}
)

func newACL() *cobra.Command {
	var a aclUser
	c := &cobra.Command{
		Use:   "acl [flags]",
		Short: "Print the rights that a user of Redis or Valkey needs",
		Long: "acl prints a user of Redis or Valkey that has exactly the rights that Penstock needs. It contacts no server.\n" +
			"Replace SECRET by a password.\n\n" +
			"Roles: serve is for penstock serve and for Go programs. admin is for status and reset, read is for status and explain.\n" +
			"admin and read have the same rights, because a script checks all rights of its user before it runs.\n" +
			"doctor is for penstock doctor: the rights of serve, and those to inspect the servers.\n" +
			"metrics is for penstock serve with metrics that estimate how many keys each rule has.\n\n" +
			"Formats: setuser is a command for redis-cli, acl is a line of an ACL file, and k8s is a Secret with an ACL file.\n" +
			"Pipe the setuser command into redis-cli, as in the last example. If you paste it into a shell, quote it, because the\n" +
			"shell interprets > and |.\n" +
			"On a Cluster, and behind Sentinel, every server needs the user: Redis does not copy users to replicas.",
		Example: "  penstock acl\n  penstock acl --role doctor --cluster --prefix shop --format acl\n" +
			"  penstock acl | sed s/SECRET/A-LONG-PASSWORD/ | redis-cli -h redis-1 -p 6379",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return a.run(c) },
	}
	f := c.Flags()
	f.StringVar(&a.role, "role", "serve", "what the user is for: serve, admin, doctor, metrics or read")
	f.StringVar(&a.user, "user", "limiter", "name of the user")
	f.StringVar(&a.prefix, "prefix", "", "prefix of all keys, as for serve (PENSTOCK_PREFIX; default ps)")
	f.BoolVar(&a.rights.Cluster, "cluster", false, "the store is a Cluster")
	f.BoolVar(&a.rights.Sentinel, "sentinel", false, "the store is behind Sentinel")
	f.BoolVar(&a.rights.Database, "database", false, "the store uses a database other than 0")
	f.StringVar(&a.client, "client", "penstock", "library that connects: penstock or go-redis")
	f.StringVar(&a.format, "format", "setuser", "output format: setuser, acl or k8s")
	for flag, values := range map[string][]string{"role": aclRoles, "format": aclFormats, "client": aclClients} {
		_ = c.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
	}
	return c
}

type aclUser struct {
	role, user, prefix, client, format string
	rights                             redisrights.Options
}

func (a *aclUser) run(c *cobra.Command) error {
	for _, flag := range []struct {
		name, value string
		known       []string
	}{{"role", a.role, aclRoles}, {"client", a.client, aclClients}, {"format", a.format, aclFormats}} {
		if err := checkChoice("--"+flag.name, flag.value, flag.known); err != nil {
			return err
		}
	}
	if strings.Trim(a.user, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.") != "" || a.user == "" {
		return withStatus(exitUsage, fmt.Errorf("--user %q is not a valid user name; use letters, digits and -_.", a.user))
	}
	given := changed(c, map[string]*string{"prefix": &a.prefix})
	s, err := settings.Load(settings.Sources{Flags: given, Environ: os.Environ(), Only: []string{"prefix"}})
	if err != nil {
		return err
	}
	_, err = fmt.Fprint(c.OutOrStdout(), a.render(a.rules(s.Prefix)))
	return err
}

// rules returns the user's rules, without its password.
func (a *aclUser) rules(prefix string) string {
	o := a.rights
	o.GoRedis = a.client == "go-redis"
	o.DecideOnly = a.role == "admin" || a.role == "read"
	if a.role == "metrics" {
		o.Further = redisops.SampleRights()
	}
	rights := redisops.Rights(o)
	if a.role == "doctor" {
		rights = doctor.Rights(o)
	}
	return redisrights.Rules(prefix, rights)
}

func (a *aclUser) render(rules string) string {
	line := "user " + a.user + " on >SECRET " + rules
	switch a.format {
	case "acl":
		return line + "\n"
	case "k8s":
		return "apiVersion: v1\nkind: Secret\nmetadata:\n  name: redis-acl\nstringData:\n  users.acl: |\n    user default off\n    " + line + "\n"
	}
	return "ACL SETUSER " + a.user + " reset on >SECRET " + rules + "\n"
}
