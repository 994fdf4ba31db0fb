// Command dist makes the files of a release from one commit of this repository.
//
//	dist prepare TREE VERSION        go.mod and go.sum of all tagged modules, before a release
//	dist tags VERSION                the names of the tags, in their order
//	dist proxy TREE VERSION FOLDER   a module proxy with all tagged modules of a tree
//	dist build [flags]               archives, packages, images, lists of components, checksums
//
// The same commit, version and Go release give the same bytes in any folder.
package main

import (
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

const usage = "usage: dist prepare TREE VERSION, dist tags VERSION, dist proxy TREE VERSION FOLDER, or dist build [flags]"

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
	case "prepare":
		if len(args) != 3 {
			return errors.New(usage)
		}
		return prepare(args[1], args[2])
	case "tags":
		if len(args) != 2 {
			return errors.New(usage)
		}
		for _, name := range tags(args[1]) {
			fmt.Println(name)
		}
		return nil
	case "build":
		return buildAll(args[1:])
	}
	return fmt.Errorf("there is no command %q; %s", args[0], usage)
}

// buildAll makes all files of a release in one folder, from HEAD without uncommitted changes.
func buildAll(args []string) error {
	flags := flag.NewFlagSet("dist build", flag.ContinueOnError)
	version := flags.String("version", "", "such as v0.1.0; the default is the tag of HEAD, or a development version")
	out := flags.String("out", "../bin/dist", "the folder for the files; old files in it are deleted")
	only := flags.String("only", "", "platforms to build, such as linux/amd64,linux/arm64; the default is all")
	if err := flags.Parse(args); err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "penstock-dist-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	r, err := checkout("..", *version, filepath.Join(work, "tree"))
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
	packages, err := newPackager(r, work)
	if err != nil {
		return err
	}
	images := &imager{release: r}
	for _, p := range platforms {
		if *only != "" && !slices.Contains(strings.Split(*only, ","), p.String()) {
			continue
		}
		content, err := b.contentOf(p, *out)
		if err == nil {
			err = b.writeArchive(p, content, *out)
		}
		if err == nil && p.os == "linux" {
			err = errors.Join(packages.pack(content, p.arch, work, *out), images.add(p, content, *out))
		}
		if err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
	}
	if err := images.write(work, *out); err != nil {
		return err
	}
	return writeChecksums(*out)
}
