package containerd

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
)

// The images that every daemon has. They are made here, no registry is asked.
const (
	// PauseImage is the image of the sandboxes.
	PauseImage = "localhost/pause:test"
	// BusyboxImage has a shell, and the few applets that are linked in it.
	BusyboxImage = "localhost/busybox:test"
)

// archives are the files in the folder of the binaries that hold the images.
var archives = []string{"pause.tar", "busybox.tar"}

// writeImages writes the archives that are missing in dir.
func writeImages(dir string) error {
	if allExist(dir, archives...) {
		return nil
	}
	busybox, err := staticBusybox()
	if err != nil {
		return err
	}
	pause := image{
		name:       PauseImage,
		entrypoint: []string{"/pause"},
		files:      map[string]string{"pause": filepath.Join(dir, "pause")},
	}
	box := image{
		name:     BusyboxImage,
		files:    map[string]string{"bin/busybox": busybox},
		symlinks: map[string]string{},
	}
	for _, applet := range []string{"sh", "sleep", "true", "false", "cat", "kill"} {
		box.symlinks["bin/"+applet] = "busybox"
	}
	for i, img := range []image{pause, box} {
		if err := img.write(filepath.Join(dir, archives[i])); err != nil {
			return fmt.Errorf("writing the image %s: %w", img.name, err)
		}
	}
	return nil
}

// ImportProgram gives the daemon an image with nothing in it but a static program, which is
// its entry point.
func (d *Daemon) ImportProgram(ctx context.Context, name, program string) error {
	entry := filepath.Base(program)
	archive := filepath.Join(d.dir, entry+".tar")
	img := image{name: name, entrypoint: []string{"/" + entry}, files: map[string]string{entry: program}}
	if err := img.write(archive); err != nil {
		return fmt.Errorf("writing the image %s: %w", name, err)
	}
	return d.importImage(ctx, archive)
}

// importImage imports an archive.
func (d *Daemon) importImage(ctx context.Context, archive string) error {
	cmd := exec.CommandContext(ctx, filepath.Join(d.binaries, "ctr"), "-n", namespace, "images", "import", archive)
	cmd.Env = append(os.Environ(), "CONTAINERD_ADDRESS="+d.Socket())
	if _, err := output(cmd); err != nil {
		return fmt.Errorf("importing an image: %w", err)
	}
	return nil
}

// image is a container image of one layer.
type image struct {
	name       string
	entrypoint []string
	files      map[string]string // path in the image → file that it is copied from
	symlinks   map[string]string // path in the image → target
}

// write writes the image in the form that "docker save" writes.
func (img image) write(path string) error {
	layer, err := img.layer()
	if err != nil {
		return err
	}
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH,
		"os":           "linux",
		"config": map[string]any{
			"Entrypoint": img.entrypoint,
			"Env":        []string{"PATH=/bin"},
		},
		"rootfs": map[string]any{
			"type":     "layers",
			"diff_ids": []string{fmt.Sprintf("sha256:%x", sha256.Sum256(layer))},
		},
	})
	if err != nil {
		return err
	}
	manifest, err := json.Marshal([]map[string]any{{
		"Config":   "config.json",
		"RepoTags": []string{img.name},
		"Layers":   []string{"layer.tar"},
	}})
	if err != nil {
		return err
	}
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for _, f := range []struct {
		name string
		data []byte
	}{{"layer.tar", layer}, {"config.json", config}, {"manifest.json", manifest}} {
		if err := addFile(w, f.name, 0o644, f.data); err != nil {
			return err
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	if err := os.WriteFile(path+".part", archive.Bytes(), 0o644); err != nil {
		return err
	}
	return os.Rename(path+".part", path)
}

// layer returns the tar of the image's file system.
func (img image) layer() ([]byte, error) {
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	for name, from := range img.files {
		data, err := os.ReadFile(from)
		if err != nil {
			return nil, err
		}
		if err := addFile(w, name, 0o755, data); err != nil {
			return nil, err
		}
	}
	for name, target := range img.symlinks {
		h := &tar.Header{Name: name, Linkname: target, Typeflag: tar.TypeSymlink, Mode: 0o777}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return layer.Bytes(), nil
}

func addFile(w *tar.Writer, name string, mode int64, data []byte) error {
	if err := w.WriteHeader(&tar.Header{Name: name, Mode: mode, Size: int64(len(data))}); err != nil {
		return err
	}
	_, err := w.Write(data)
	return err
}
