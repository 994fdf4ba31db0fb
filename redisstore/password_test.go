package redisstore_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/testing/effort"
	"github.com/penstock/penstock/internal/testing/eventually"
	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/redisstore"
)

// A passwordChange is a user whose password is in a file.
type passwordChange struct {
	*testing.T
	user, file string
	servers    []*redistest.Server
}

// set gives the user a password on the servers, and ends the user's connections.
func (p passwordChange) set(password string) {
	p.Helper()
	for _, s := range p.servers {
		for _, command := range []string{
			"ACL SETUSER " + p.user + " on resetpass >" + password + " ~* &* +@all",
			"CLIENT KILL USER " + p.user,
		} {
			if _, err := s.Do(strings.Fields(command)...); err != nil {
				p.Fatalf("%s: %v", command, err)
			}
		}
	}
}

func (p passwordChange) write(password string) {
	p.Helper()
	if err := os.WriteFile(p.file, []byte(password+"\n"), 0o600); err != nil {
		p.Fatal(err)
	}
}

// Servers and Sentinels have different users, and the file of each is read for each connection.
func TestPasswordFilesAreReadForEachConnection(t *testing.T) {
	effort.SkipUnderRace(t)
	t.Parallel()
	group := redistest.StartSentinel(t)
	dir := t.TempDir()
	changes := []passwordChange{
		{t, "limiter", filepath.Join(dir, "redis"), []*redistest.Server{group.Primary, group.Replica}},
		{t, "watcher", filepath.Join(dir, "sentinel"), group.Sentinels},
	}
	for _, c := range changes {
		c.write(c.user + "-1")
		c.set(c.user + "-1")
	}
	store := open(t, "redis+sentinel://limiter@"+strings.Join(group.Addrs(), ",")+"/"+redistest.MasterName+
		"?password_file="+changes[0].file+"&sentinel_username=watcher&sentinel_password_file="+changes[1].file, redisstore.Options{})
	decide := func() error {
		_, err := store.Decide(within(t, time.Second), []penstock.Charge{spend("k", slowRefill("d", 1_000_000), 1)})
		return err
	}
	eventually.NoError(t, decide)
	for _, c := range changes {
		c.set(c.user + "-2")
	}
	eventually.True(t, "the old password to be rejected", func() bool {
		e, ok := errors.AsType[*penstock.StoreError](decide())
		return ok && e.Reason == penstock.ReasonPermissionDenied
	})
	if err := os.Remove(changes[0].file); err != nil {
		t.Fatal(err)
	}
	eventually.True(t, "an error that names the missing file", func() bool {
		err := decide()
		return err != nil && strings.Contains(err.Error(), "password_file: stat ")
	})
	for _, c := range changes {
		c.write(c.user + "-2")
	}
	eventually.NoError(t, decide)
	if err := group.Failover(); err != nil { // the Sentinels know the new primary
		t.Fatal(err)
	}
	eventually.NoError(t, decide)
}
