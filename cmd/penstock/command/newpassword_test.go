package command

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/testing/eventually"
	"github.com/penstock/penstock/internal/testing/redistest"
)

// The commands of docs/howto/new-password.md change the password while an instance runs. If Redis
// rejects a command, none of the following ones runs.
func TestCommandsForANewPasswordWork(t *testing.T) {
	page, err := os.ReadFile("../../../docs/howto/new-password.md")
	if err != nil {
		t.Fatal(err)
	}
	cli, err := exec.LookPath(redistest.CLI())
	if err != nil {
		t.Fatal(err)
	}
	redis, dir := redistest.Start(t), t.TempDir()
	file := filepath.Join(dir, "redis")
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	write("redis", "OLD-PASSWORD\n")
	// redis-cli -h redis-1 …, and penstock
	write("redis-cli", "#!/bin/sh\nshift 2\nexec "+cli+" -s "+redis.Socket+" \"$@\"\n")
	write("penstock", "#!/bin/sh\nBE_PENSTOCK=1 PENSTOCK_STORE_TIMEOUT=1m exec "+os.Args[0]+" \"$@\"\n")
	_, user, _ := command("acl")
	if _, err := redis.Do(strings.Fields(strings.Replace(user, "SECRET", "OLD-PASSWORD", 1))...); err != nil {
		t.Fatal(err)
	}
	if _, err := redis.Do("CONFIG", "SET", "requirepass", "ADMIN-PASSWORD"); err != nil {
		t.Fatal(err)
	}
	p := startProcess(t, "--admin-listen=127.0.0.1:0", "--store=redis://limiter@"+redis.Addr+"?password_file="+file)
	here := strings.NewReplacer("redis-1:6379", redis.Addr, "/run/secrets/redis", file, "127.0.0.1:9180", p.admin)
	run := func(block string) error {
		c := exec.Command("sh", "-c", here.Replace(block))
		c.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
		out, err := c.CombinedOutput()
		if err != nil {
			return fmt.Errorf("%s\n%s%w", block, out, err)
		}
		return nil
	}
	blocks := regexp.MustCompile("(?ms)^ *```\n(.*?)^ *```$").FindAllStringSubmatch(string(page), -1)
	if len(blocks) != 8 {
		t.Fatalf("the page has %d blocks of commands; want 1 to log in, 5 for an ACL, and 2 for requirepass", len(blocks))
	}
	logIn := blocks[0][1]
	for _, block := range blocks[1:] {
		changesRedis := strings.Contains(block[1], "redis-cli")
		before, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if changesRedis && run("export REDISCLI_AUTH=WRONG\n"+block[1]) == nil {
			t.Errorf("with a wrong password, these commands have exit status 0:\n%s", block[1])
		}
		if after, err := os.ReadFile(file); changesRedis && string(after) != string(before) || err != nil {
			t.Errorf("with a wrong password, these commands replace the file: %v\n%s", err, block[1])
		}
		if strings.Contains(block[1], "penstock") {
			eventually.NoError(t, func() error { return run(block[1]) }) // an instance reports a failure for 10 s
		} else if err := run(logIn + block[1]); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := redis.Do("AUTH", "NEXT-PASSWORD"); err != nil {
		t.Errorf("the password of the server is not NEXT-PASSWORD: %v", err)
	}
	for password, isValid := range map[string]bool{"OLD-PASSWORD": false, "NEW-PASSWORD": true} {
		if _, err := redis.Do("AUTH", "limiter", password); (err == nil) != isValid {
			t.Errorf("the password %s of the user: %v; want that it is valid: %t", password, err, isValid)
		}
	}
	if text, err := os.ReadFile(file); string(text) != "NEXT-PASSWORD" || err != nil {
		t.Errorf("the file has %q, %v; want NEXT-PASSWORD", text, err)
	}
}

func TestDoctorAsksAnInstance(t *testing.T) {
	s := redistest.Start(t)
	if _, err := s.Do("ACL", "SETUSER", "gate", "on", ">old", "~*", "&*", "+@all"); err != nil {
		t.Fatal(err)
	}
	p := startProcess(t, "--admin-listen=127.0.0.1:0", "--store=redis://gate:old@"+s.Addr)
	doctor := func() (code int, out string) {
		code, out, _ = command("doctor", "--store-timeout", "1m", "--store", s.URL(), "--admin", p.admin)
		return code, out
	}
	eventually.NoError(t, func() error {
		if code, out := doctor(); code != 0 || !strings.Contains(out, "the store works for the instance at "+p.admin) {
			return fmt.Errorf("exit status %d; want 0, and that the store works for the instance:\n%s", code, out)
		}
		return nil
	})
	for _, command := range []string{"ACL SETUSER gate resetpass >new", "CLIENT KILL USER gate"} {
		if _, err := s.Do(strings.Fields(command)...); err != nil {
			t.Fatal(err)
		}
	}
	eventually.NoError(t, func() error {
		if code, out := doctor(); code != exitProblem || !strings.Contains(out, p.admin+" reports that the store fails: permission_denied") || !strings.Contains(out, "password_file") {
			return fmt.Errorf("exit status %d; want %d, and that the instance cannot log in:\n%s", code, exitProblem, out)
		}
		return nil
	})
	if code, out, _ := command("doctor", "--store-timeout", "1m", "--store", s.URL(), "--admin", "127.0.0.1:1"); code != 0 || !strings.Contains(out, "the instance cannot be asked") {
		t.Errorf("without an instance, the exit status is %d; want 0, and an unknown check:\n%s", code, out)
	}
}
