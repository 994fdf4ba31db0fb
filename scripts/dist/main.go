// Command dist makes what a release ships, of one commit of this repository and of nothing else.
//
//	dist proxy TREE VERSION FOLDER   a module proxy with all tagged modules of a tree
//	dist build [flags]               archives, packages, lists of components, and checksums
//
// The same commit, version and Go give the same bytes in any folder.
package main

import (
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"time"
)

const usage = "usage: dist proxy TREE VERSION FOLDER, or dist build [flags]"

func main() {
	log.SetFlags(0)
	log.SetPrefix("dist: ")
	if err := run(os.Args[1:]); err != nil {
		log.Fatal(err)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return errors.New(usage)
	}
	switch args[0] {
	case "proxy":
		if len(args) != 4 {
			return errors.New(usage)
		}
		return writeProxy(args[1], args[3], moduleVersions(args[2]), time.Unix(0, 0))
	case "build":
		return buildAll(args[1:])
	}
	return fmt.Errorf("there is no command %q; %s", args[0], usage)
}

// buildAll makes everything in one folder.
func buildAll(args []string) error {
	flags := flag.NewFlagSet("dist build", flag.ContinueOnError)
	repository := flags.String("repository", "..", "the repository; its HEAD is built, without uncommitted changes")
	version := flags.String("version", "", "such as v0.1.0; the default is the tag of HEAD, or a development version")
	out := flags.String("out", "../bin/dist", "the folder for what is made; its old files are deleted")
	only := flags.String("only", "", "build one platform only, such as linux/amd64")
	if err := flags.Parse(args); err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "penstock-dist-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	r, err := checkout(*repository, *version, filepath.Join(work, "tree"))
	if err != nil {
		return err
	}
	fmt.Printf("penstock %s, commit %s of %s\n", r.version, r.commit, r.date.Format(time.DateOnly))
	if *out, err = filepath.Abs(*out); err != nil {
		return err
	}
	if err := os.RemoveAll(*out); err != nil {
		return err
	}
	if err := os.MkdirAll(*out, 0o755); err != nil {
		return err
	}
	b, err := newBuilder(r, work)
	if err != nil {
		return err
	}
	pack, err := newPackager(r, work)
	if err != nil {
		return err
	}
	for _, p := range platforms {
		if *only != "" && *only != p.String() {
			continue
		}
		if err := ship(b, pack, p, *out); err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
	}
	return writeChecksums(*out)
}

// ship makes the files of a platform.
func ship(b *builder, pack *packager, p platform, out string) error {
	content, err := b.contentOf(p, out)
	if err != nil {
		return err
	}
	if err := b.archive(p, content, out); err != nil {
		return err
	}
	if p.os != "linux" {
		return nil
	}
	return pack.pack(content, p.arch, b.work, out)
}
