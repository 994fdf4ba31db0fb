package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestMutantsOfGo(t *testing.T) {
	const text = "package p\n\nfunc f(a int) int {\n\tif a < 7 && a != 0 {\n\t\ta += 2\n\t}\n\treturn a - 1\n}\n"
	checkMutants(t, "p.go", text, []string{
		"if a <= 7 && a != 0 {", "if a < 7 || a != 0 {", "if a < 7 && a == 0 {", "if a < 8 && a != 0 {", "if a < 7 && a != 1 {",
		"if !(a < 7 && a != 0) {", "a -= 2", "a += 3", "{}", "return a + 1", "return a - 2",
	})
}

func TestMutantsOfLua(t *testing.T) {
	const text = "-- if a < 1 then\nlocal function f(a)\n  if a < 7 and a ~= 0 then\n    a = math.min(a, 2)\n  end\n" +
		"  local b = {a,\n    c = 3}\n  redis.call('SET', a - 1)\n  return 'a + b'\nend\n"
	checkMutants(t, "p.lua", text, []string{
		"if a <= 7 and a ~= 0 then", "if a < 7 or a ~= 0 then", "if a < 7 and a == 0 then", "if a < 8 and a ~= 0 then", "if a < 7 and a ~= 1 then",
		"if not (a < 7 and a ~= 0) then", "a = math.max(a, 2)", "a = math.min(a, 3)", "do end", "c = 4}", "do end", "redis.call('SET', a + 1)",
		"redis.call('SET', a - 2)",
	})
}

// checkMutants compares the changed lines of all mutants of a file with want, in any order.
func checkMutants(t *testing.T, file, text string, want []string) {
	t.Helper()
	dir := t.TempDir()
	writeFile(t, dir, file, text)
	all, err := mutantsOf(dir, file)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range all {
		got = append(got, m.after)
		if m.before == m.after || string(m.text) == text {
			t.Errorf("the mutant %q does not change the code", m.id())
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("the changed lines of the mutants are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// If a test calls only one of two functions, the mutants of the other function survive, unless they
// are listed as equivalent.
func TestMutantsAreKilledByTestsOfTheirFunction(t *testing.T) {
	t.Setenv("GOWORK", "off")
	dir := t.TempDir()
	writeFile(t, dir, "go.mod", "module m\n\ngo 1.26\n")
	writeFile(t, dir, "m.go", "package m\n\nfunc Seen(a, b int) bool { return a < b }\n\nfunc Unseen(a, b int) bool { return a > b }\n")
	writeFile(t, dir, "m_test.go", "package m\n\nimport \"testing\"\n\nfunc TestSeen(t *testing.T) {\n\tif Seen(1, 1) {\n\t\tt.Fail()\n\t}\n}\n")
	writeFile(t, dir, "scripts/README", "")
	t.Chdir(dir + "/scripts") // the tree is the folder above
	chosen := []target{{"*.go", []string{"."}}}
	if killed, tried, err := run(chosen, nil); killed != 1 || tried != 2 || err != nil {
		t.Errorf("run kills %d of %d mutants (error %v); want 1 of 2, that of Seen", killed, tried, err)
	}
	equivalent := parseEquivalents("# why\nm.go | func Unseen(a, b int) bool { return a > b } | func Unseen(a, b int) bool { return a >= b } | it is never called\n")
	if killed, tried, err := run(chosen, equivalent); killed != 1 || tried != 1 || err != nil {
		t.Errorf("with Unseen in equivalent.txt, run kills %d of %d mutants (error %v); want 1 of 1", killed, tried, err)
	}
	writeFile(t, dir, "other/other_test.go", "package other\n\nimport (\n\t\"testing\"\n\n\t\"m\"\n)\n\nfunc TestUnseen(t *testing.T) {\n\tif m.Unseen(1, 1) {\n\t\tt.Fail()\n\t}\n}\n")
	if killed, tried, err := run([]target{{"*.go", []string{".", "./other"}}}, nil); killed != 2 || tried != 2 || err != nil {
		t.Errorf("with tests of Unseen in another package, run kills %d of %d mutants (error %v); want 2 of 2", killed, tried, err)
	}
	writeFile(t, dir, "m.lua", "-- 1 < 2\nreturn 1\n")
	writeFile(t, dir, "lua.go", "package m\n\nimport _ \"embed\"\n\n//go:embed m.lua\nvar Lua string\n")
	writeFile(t, dir, "lua_test.go", "package m\n\nimport \"testing\"\n\nfunc TestLua(t *testing.T) {\n\tif Lua != \"-- 1 < 2\\nreturn 1\\n\" {\n\t\tt.Fail()\n\t}\n}\n")
	if killed, tried, err := run([]target{{"*.lua", []string{"."}}}, nil); killed != 1 || tried != 1 || err != nil {
		t.Errorf("run kills %d of %d mutants of an embedded Lua file (error %v); want 1 of 1", killed, tried, err)
	}
	writeFile(t, dir, "m_test.go", "package m\n\nimport \"testing\"\n\nfunc TestSeen(t *testing.T) { t.Fail() }\n")
	if _, _, err := run(chosen, nil); err == nil {
		t.Error("run returns no error for tests that fail without a mutant; want an error")
	}
}

func writeFile(t *testing.T, dir, file, text string) {
	t.Helper()
	path := filepath.Join(dir, file)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
