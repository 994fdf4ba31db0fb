// Package linkedfolders finds what to watch for a file that is reached through links.
package linkedfolders

import (
	"os"
	"path/filepath"
	"strings"
)

// Of returns the folders in which a change can make a name mean another file: its own folder, and
// those of all links on the way. If a part of the way is missing, the folder of that part is the
// last. The folders contain no links. The name must be absolute.
func Of(name string) (folders []string) {
	const separator = string(filepath.Separator)
	root := filepath.VolumeName(name) + separator
	here, rest := root, name[len(root)-1:]
	for links := 0; links < 40; { // as many links as the system follows
		step, after, _ := strings.Cut(strings.TrimLeft(rest, separator), separator)
		next := filepath.Join(here, step)
		info, err := os.Lstat(next)
		switch {
		case err == nil && info.Mode().Type() == os.ModeSymlink:
			folders = append(folders, here)
			links++
			target, _ := os.Readlink(next)
			if filepath.IsAbs(target) {
				here = root
			}
			rest = target + separator + after
		case err != nil || after == "":
			return append(folders, here)
		default:
			here, rest = next, after
		}
	}
	return folders
}
