package command

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/testing/redistest"
)

// partsOfRow is the number of parts of a table's row with three cells, split at "|". The first and
// the last part are outside the cells.
const partsOfRow = 5

// rightsIn returns the rights in the text of a user: the words that begin with '+'.
func rightsIn(text string) (rights []string) {
	for _, word := range strings.Fields(text) {
		if strings.HasPrefix(word, "+") {
			rights = append(rights, word)
		}
	}
	return rights
}

func TestOperationsPageHasTheRightsThatACLPrints(t *testing.T) {
	page, err := os.ReadFile("../../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, printed, _ := command("acl")
	if !strings.Contains(string(page), "```\n"+printed+"```\n") {
		t.Errorf("docs/operations.md does not have the block\n%s", printed)
	}
	plain := rightsIn(printed)
	rows := 0
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(strings.ReplaceAll(line, `\|`, "\x00"), "|") // \| does not end a cell
		if len(cells) != partsOfRow || !strings.HasPrefix(cells[1], " `--") {
			continue
		}
		wordsOf := func(cell string) []string {
			return strings.Fields(strings.NewReplacer("`", "", "\x00", "|").Replace(cell))
		}
		rows++
		code, out, errors := command(append([]string{"acl"}, wordsOf(cells[1])...)...)
		if code != exitOK {
			t.Fatalf("acl %s fails: %s", cells[1], errors)
		}
		added := slices.DeleteFunc(rightsIn(out), func(right string) bool { return slices.Contains(plain, right) })
		if want := wordsOf(cells[2]); !slices.Equal(added, want) {
			t.Errorf("docs/operations.md: %s adds %v; penstock acl adds %v", cells[1], want, added)
		}
	}
	if rows != 6 {
		t.Errorf("docs/operations.md has %d rows of options of penstock acl; want 6", rows)
	}
}

// A server accepts what acl prints, in each format. penstock explain can then use each user, and no
// user has other rights.
func TestServersAcceptWhatACLPrints(t *testing.T) {
	t.Setenv("PENSTOCK_PREFIX", "shop")
	for _, role := range aclRoles {
		_, set, _ := command("acl", "--role", role)
		_, line, _ := command("acl", "--role", role, "--format", "acl", "--user", "other")
		_, secret, _ := command("acl", "--role", role, "--format", "k8s", "--user", "other")
		if !strings.HasSuffix(secret, "\n    user default off\n    "+line) || !strings.HasPrefix(secret, "apiVersion: v1\nkind: Secret\n") {
			t.Errorf("role %s: with --format k8s, acl prints\n%s\nwant a Secret that turns the user default off and ends with the line %s", role, secret, line)
		}
		file := writeFile(t, "users.acl", "user default on nopass ~* &* +@all\n"+line)
		s := redistest.Start(t, "--aclfile", file)
		if _, err := s.Do(strings.Fields(set)...); err != nil {
			t.Errorf("Redis rejects %s: %v", set, err)
		}
		for _, user := range []string{"limiter", "other"} {
			code, _, errors := command("explain", "--store", "redis://"+user+":SECRET@"+s.Addr, "-X", "POST", "/api/rides/request")
			if code != exitOK {
				t.Errorf("role %s, user %s: explain ends with exit status %d, %s; want %d", role, user, code, errors, exitOK)
			}
		}
		for _, forbidden := range [][]string{{"GET", "ps1{k}x"}, {"FLUSHALL"}, {"CONFIG", "GET", "*"}, {"KEYS", "*"}, {"ACL", "LIST"}} {
			answer, err := s.Do(append([]string{"ACL", "DRYRUN", "limiter"}, forbidden...)...)
			if err != nil || answer == "OK" {
				t.Errorf("role %s: ACL DRYRUN of %v returns %v, %v; want no right for it", role, forbidden, answer, err)
			}
		}
	}
}

func TestACLRefusesWhatItDoesNotKnow(t *testing.T) {
	for args, want := range map[string]string{
		"--role root": `unknown --role "root"; write serve or admin or doctor or metrics or read`, "--format xml": "write setuser or acl or k8s",
		"--client jedis": "write penstock or go-redis", "--user a,b": "is not a valid user name", "extra": "unknown command",
	} {
		if code, out, errors := command(append([]string{"acl"}, strings.Fields(args)...)...); code != exitUsage || out != "" || !strings.Contains(errors, want) {
			t.Errorf("acl %s: exit status %d, %q, %s; want %d with %q", args, code, out, errors, exitUsage, want)
		}
	}
	if code, _, errors := command("acl", "--prefix", "a b"); code != exitUsage || !strings.Contains(errors, "prefix") {
		t.Errorf("acl --prefix 'a b': exit status %d, %s; want %d with %q", code, errors, exitUsage, "prefix")
	}
}
