// Command manpages writes the man pages and the shell completions of penstock to FOLDER/man and
// FOLDER/completions. It makes them from the help texts of the commands.
package main

import (
	"errors"
	"log"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra/doc"

	"github.com/penstock/penstock/cmd/penstock/command"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("manpages: ")
	if len(os.Args) != 4 {
		log.Fatal("usage: manpages FOLDER VERSION DATE")
	}
	date, err := time.Parse(time.RFC3339, os.Args[3])
	if err == nil {
		err = writePages(os.Args[1], os.Args[2], date)
	}
	if err != nil {
		log.Fatal(err)
	}
}

// writePages writes the man pages and the completions below folder.
func writePages(folder, version string, date time.Time) error {
	man, completions := filepath.Join(folder, "man"), filepath.Join(folder, "completions")
	if err := errors.Join(os.MkdirAll(man, 0o755), os.MkdirAll(completions, 0o755)); err != nil {
		return err
	}
	c := command.New()
	c.DisableAutoGenTag = true
	header := &doc.GenManHeader{Section: "1", Date: &date, Source: "Penstock " + version, Manual: "Penstock"}
	return errors.Join(
		doc.GenManTree(c, header, man),
		c.GenBashCompletionFileV2(filepath.Join(completions, "penstock.bash"), true),
		c.GenZshCompletionFile(filepath.Join(completions, "_penstock")),
		c.GenFishCompletionFile(filepath.Join(completions, "penstock.fish"), true),
	)
}
