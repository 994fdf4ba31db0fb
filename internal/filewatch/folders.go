package filewatch

import (
	"os"
	"path/filepath"
	"strings"
)

// foldersOf returns the folders in which a change can make a path lead to another file. They are
// the folder of the file, and the folders of all links in the path. If an element of the path does
// not exist, the last folder is the one where it is missing. The returned paths contain no links.
// The given path must be absolute.
func foldersOf(path string) (folders []string) {
	const separator = string(filepath.Separator)
	root := filepath.VolumeName(path) + separator
	here, rest := root, path[len(root)-1:]
	const maxLinks = 40 // Linux follows no more in one path
	for links := 0; links < maxLinks; {
		element, after, _ := strings.Cut(strings.TrimLeft(rest, separator), separator)
		next := filepath.Join(here, element)
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
