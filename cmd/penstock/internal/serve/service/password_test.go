package service

import (
	"path/filepath"
	"testing"

	"github.com/penstock/penstock/internal/testing/eventually"
	"github.com/penstock/penstock/internal/testing/redistest"
)

// A new password of Redis needs a new file, and no restart.
func TestPasswordFileIsReadAgain(t *testing.T) {
	redis := redistest.Start(t)
	do := func(command ...string) {
		t.Helper()
		if _, err := redis.Do(command...); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(t.TempDir(), "password")
	setPassword := func(password string) {
		t.Helper()
		do("ACL", "SETUSER", "gate", "on", "resetpass", ">"+password, "~*", "&*", "+@all")
		do("CLIENT", "KILL", "USER", "gate")
	}
	replaceFile(t, file, "old\n")
	setPassword("old")
	r := startLimited(t, hello, "rules: [{name: all, per: global, limits: [{rate: 1000000/d}]}]\n",
		map[string]string{"store": "redis://gate@" + redis.Addr + "?password_file=" + file})
	isDecidedByStore := func() bool {
		const byStore = `rate_limiter_decisions_total{source="store"}`
		before := r.metric(byStore)
		r.mustSend("GET", "/")
		return r.metric(byStore) != before
	}
	eventually.True(t, "the store to decide", isDecidedByStore)
	setPassword("new")
	eventually.True(t, "the old password to be rejected", func() bool {
		r.mustSend("GET", "/")
		return r.mustGet("http://"+r.Admin+"/readyz?verbose", 200) == "service ok\nstore degraded: permission_denied\npolicy ok\ndegraded: store\n"
	})
	replaceFile(t, file, "new\n")
	eventually.True(t, "the store to decide with the new password", isDecidedByStore)
}
