package main

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// imageOf makes the container image of a platform. The image has only the program and the licenses.
// It needs no files for time zones and CA roots, because the program contains them. The Dockerfile
// makes the same image; a test compares both.
func imageOf(r release, p platform, content fileSet) (v1.Image, error) {
	files := fileSet{
		"usr/bin/penstock":              content["penstock"],
		"licenses/LICENSE":              content["LICENSE"],
		"licenses/THIRD_PARTY_LICENSES": content["THIRD_PARTY_LICENSES"],
	}
	var text bytes.Buffer
	if err := files.writeTar(&text, "", r.date); err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(
		func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(text.Bytes())), nil },
		tarball.WithCompressionLevel(gzip.BestCompression), tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image, err := mutate.Append(base, mutate.Addendum{Layer: layer, History: v1.History{Created: v1.Time{Time: r.date}, CreatedBy: "dist build"}})
	if err != nil {
		return nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Created = p.os, p.arch, v1.Time{Time: r.date}
	config.Config = v1.Config{
		User:         "65532:65532", // not a name, because Kubernetes cannot check that the user with a name is not root
		Env:          []string{"PATH=/usr/bin"},
		Entrypoint:   []string{"/usr/bin/penstock"},
		Cmd:          []string{"serve"},
		ExposedPorts: map[string]struct{}{"8080/tcp": {}, "9180/tcp": {}},
		WorkingDir:   "/",
		Healthcheck: &v1.HealthConfig{
			Test:     []string{"CMD", "/usr/bin/penstock", "healthcheck"},
			Interval: 10 * time.Second, Timeout: 5 * time.Second, StartPeriod: 5 * time.Second,
		},
		Labels: map[string]string{
			"org.opencontainers.image.title":       "penstock",
			"org.opencontainers.image.description": "rate limiter for HTTP APIs",
			"org.opencontainers.image.source":      "https://github.com/penstock/penstock",
			"org.opencontainers.image.licenses":    "Apache-2.0",
			"org.opencontainers.image.version":     r.version,
			"org.opencontainers.image.revision":    r.commit,
		},
	}
	return mutate.ConfigFile(image, config)
}

// An imager collects the images of all platforms.
type imager struct {
	release
	images []mutate.IndexAddendum
}

// add makes the image of a platform, and writes it as an archive for "docker load".
func (i *imager) add(p platform, content fileSet, out string) error {
	image, err := imageOf(i.release, p, content)
	if err != nil {
		return err
	}
	i.images = append(i.images, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: p.os, Architecture: p.arch}}})
	tag, err := name.NewTag("penstock:" + i.number())
	if err != nil {
		return err
	}
	return tarball.WriteToFile(filepath.Join(out, fmt.Sprintf("penstock_%s_linux_%s.docker.tar", i.number(), p.arch)), tag, image)
}

// write writes all images to one archive. The archive is an OCI layout, which registries accept.
func (i *imager) write(work, out string) error {
	if len(i.images) == 0 {
		return nil
	}
	dir := filepath.Join(work, "oci")
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	index := mutate.AppendManifests(mutate.IndexMediaType(empty.Index, types.OCIImageIndex), i.images...)
	if err := path.AppendIndex(index, layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": i.number()})); err != nil {
		return err
	}
	content := make(fileSet)
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		content[filepath.ToSlash(rel)] = file{path: path}
		return err
	})
	if err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(out, fmt.Sprintf("penstock_%s_linux.oci.tar", i.number())))
	if err != nil {
		return err
	}
	defer f.Close()
	if err := content.writeTar(f, "", i.date); err != nil {
		return err
	}
	return f.Close()
}
