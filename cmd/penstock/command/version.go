package command

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
)

// Releases set these by -ldflags=-X, because the module proxy does not know the commit.
var (
	commit string // all 40 digits of its hash
	date   string // of the commit, as 2026-11-30T12:00:00Z
)

// A build identifies this program: its version, commit and platform.
type build struct {
	Version  string `json:"version"`          // of the module, or devel
	Commit   string `json:"commit,omitempty"` // "" if it is not known
	Date     string `json:"date,omitempty"`   // of the commit; "" if it is not known
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func newVersion() *cobra.Command {
	var output string
	c := &cobra.Command{
		Use:   "version",
		Short: "Print the version, the commit and its date",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			b := thisBuild()
			if output == "json" {
				return writeJSON(c.OutOrStdout(), b)
			}
			_, err := io.WriteString(c.OutOrStdout(), b.line())
			return err
		},
	}
	addOutput(c, &output)
	return c
}

// thisBuild returns the build of this process. The commit and the date come from -ldflags, or else
// from the repository in which the go command built the program.
func thisBuild() build {
	b := build{Version: "devel", Commit: commit, Date: date, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		b.Version = v
	}
	if b.Commit != "" {
		return b
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Commit = s.Value
		case "vcs.time":
			b.Date = s.Value
		}
	}
	return b
}

// line describes the build in one line, with 12 digits of the commit, and its day.
func (b build) line() string {
	parts := []string{b.Go, b.Platform}
	if b.Commit != "" {
		day, _, _ := strings.Cut(b.Date, "T")
		parts = append([]string{fmt.Sprintf("commit %.12s of %s", b.Commit, day)}, parts...)
	}
	return fmt.Sprintf("penstock %s (%s)\n", b.Version, strings.Join(parts, ", "))
}

func version() string { return thisBuild().version() }

// version returns the module's version. A build without a version is devel, followed by the first
// 12 digits of the commit if it is known, so that such builds can be distinguished.
func (b build) version() string {
	if b.Version == "devel" && b.Commit != "" {
		return fmt.Sprintf("devel-%.12s", b.Commit)
	}
	return b.Version
}
