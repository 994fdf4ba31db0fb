package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// A fileSet has the files of an archive by their slash-separated names. Equal sets give archives
// with equal bytes: files are in the order of their names, and all have the same time and no owner.
type fileSet map[string]file

// A file is a text, or a file on disk.
type file struct {
	text []byte
	path string      // of the file on disk; "": the file is text
	mode os.FileMode // default: 0o644
}

func (f file) read() ([]byte, error) {
	if f.path == "" {
		return f.text, nil
	}
	return os.ReadFile(f.path)
}

func (f file) permissions() os.FileMode {
	if f.mode == 0 {
		return 0o644
	}
	return f.mode
}

// add adds the files of the folder dir on disk. Their names begin with name and a slash. The folder
// dir must have no subfolders.
func (c fileSet) add(name, dir string) error {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		c[name+"/"+e.Name()] = file{path: filepath.Join(dir, e.Name())}
	}
	return err
}

// forEachFile calls do with each file, in the order of names. It stops at the first error.
func (c fileSet) forEachFile(do func(name string, text []byte, mode os.FileMode) error) error {
	for _, name := range slices.Sorted(maps.Keys(c)) {
		text, err := c[name].read()
		if err == nil {
			err = do(name, text, c[name].permissions())
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// write writes the files below a folder on disk.
func (c fileSet) write(dir string, date time.Time) error {
	return c.forEachFile(func(name string, text []byte, mode os.FileMode) error {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := writeFile(path, bytes.NewReader(text), mode); err != nil {
			return err
		}
		// The umask may have changed the mode.
		return errors.Join(os.Chmod(path, mode), os.Chtimes(path, date, date))
	})
}

// writeTarGz writes the files to a compressed archive, below the folder top.
func (c fileSet) writeTarGz(path, top string, date time.Time) error {
	var out bytes.Buffer
	gz, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		return err
	}
	if err := errors.Join(c.writeTar(gz, top+"/", date), gz.Close()); err != nil {
		return err
	}
	return os.WriteFile(path, out.Bytes(), 0o644)
}

// writeTar writes an uncompressed archive of the files and their folders. Each name in the archive
// begins with prefix.
func (c fileSet) writeTar(to io.Writer, prefix string, date time.Time) error {
	w := tar.NewWriter(to)
	write := func(kind byte, name string, text []byte, mode os.FileMode) error {
		h := &tar.Header{Typeflag: kind, Name: name, Size: int64(len(text)), Mode: int64(mode), ModTime: date, Format: tar.FormatUSTAR}
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		_, err := w.Write(text)
		return err
	}
	written := make(map[string]bool) // folders
	err := c.forEachFile(func(name string, text []byte, mode os.FileMode) error {
		name = prefix + name
		for i, letter := range name { // write the folders above the file first
			if dir := name[:i+1]; letter == '/' && !written[dir] {
				written[dir] = true
				if err := write(tar.TypeDir, dir, nil, 0o755); err != nil {
					return err
				}
			}
		}
		return write(tar.TypeReg, name, text, mode)
	})
	return errors.Join(err, w.Close())
}

// writeZip writes the files to a zip archive, below the folder top.
func (c fileSet) writeZip(path, top string, date time.Time) error {
	var out bytes.Buffer
	w := zip.NewWriter(&out)
	err := c.forEachFile(func(name string, text []byte, mode os.FileMode) error {
		h := &zip.FileHeader{Name: top + "/" + name, Method: zip.Deflate, Modified: date}
		h.SetMode(mode)
		to, err := w.CreateHeader(h)
		if err != nil {
			return err
		}
		_, err = to.Write(text)
		return err
	})
	if err := errors.Join(err, w.Close()); err != nil {
		return err
	}
	return os.WriteFile(path, out.Bytes(), 0o644)
}

// writeChecksums writes the SHA-256 of each file in a folder to checksums.txt, in the format that
// "sha256sum --check" reads.
func writeChecksums(dir string) error {
	const name = "checksums.txt"
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var sums bytes.Buffer
	for _, e := range entries {
		if e.IsDir() || e.Name() == name {
			continue
		}
		f, err := os.Open(filepath.Join(dir, e.Name()))
		if err != nil {
			return err
		}
		hash := sha256.New()
		_, err = io.Copy(hash, f)
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
		fmt.Fprintf(&sums, "%x  %s\n", hash.Sum(nil), e.Name())
	}
	return os.WriteFile(filepath.Join(dir, name), sums.Bytes(), 0o644)
}
