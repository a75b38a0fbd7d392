package testnode

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
)

// Every daemon has these images. They are built here, without a registry.
const (
	// PauseImage is the image of the sandboxes.
	PauseImage = "localhost/pause:test"
	// BusyboxImage contains a shell and a few applets of busybox.
	BusyboxImage = "localhost/busybox:test"
)

// archives are the image archives by file name, each with the name of its image.
var archives = map[string]string{"pause.tar": PauseImage, "busybox.tar": BusyboxImage}

// prepareImages returns the folder with the image archives.
func prepareImages(ctx context.Context) (string, error) {
	if err := Install(ctx, "busybox"); err != nil {
		return "", err
	}
	key := fmt.Sprintf("images-%s-%s", runtime.Version(), arch)
	return cached(ctx, key, slices.Sorted(maps.Keys(archives)), func(ctx context.Context, into string) error {
		e2e, err := moduleDir(ctx)
		if err != nil {
			return err
		}
		if err := goBuild(ctx, e2e, into, module+"/testnode/pause"); err != nil {
			return err
		}
		pause := image{
			name:       PauseImage,
			entrypoint: []string{"/pause"},
			files:      map[string]string{"pause": filepath.Join(into, "pause")},
		}
		if err := pause.write(filepath.Join(into, "pause.tar")); err != nil {
			return err
		}
		box, err := busybox(BusyboxImage)
		if err != nil {
			return err
		}
		return box.write(filepath.Join(into, "busybox.tar"))
	})
}

// busybox returns an image with a shell. Only its name varies.
func busybox(name string) (image, error) {
	program, err := staticBusybox()
	box := image{name: name, files: map[string]string{"bin/busybox": program}, symlinks: map[string]string{}}
	for _, applet := range []string{"sh", "sleep", "true", "false", "cat", "kill"} {
		box.symlinks["bin/"+applet] = "busybox"
	}
	return box, err
}

// ImportProgram imports an image that contains only a static program, which is its entry point.
func (d *Daemon) ImportProgram(ctx context.Context, name, program string) error {
	entry := filepath.Base(program)
	return d.importAs(ctx, image{
		name: name, entrypoint: []string{"/" + entry}, files: map[string]string{entry: program},
	})
}

// ImportBusybox imports the image of busybox under another name.
func (d *Daemon) ImportBusybox(ctx context.Context, name string) error {
	box, err := busybox(name)
	if err != nil {
		return err
	}
	return d.importAs(ctx, box)
}

// ImportBusyboxWith imports an image of busybox with more static programs in /bin. The keys of the
// argument programs are file names in /bin; the values are paths on this machine. The image runs as
// the given user. It defines the user app, with UID 1234 and the groups 1234 and 77.
func (d *Daemon) ImportBusyboxWith(ctx context.Context, name, user string, programs map[string]string) error {
	box, err := busybox(name)
	if err != nil {
		return err
	}
	box.user = user
	for path, text := range map[string]string{
		"passwd": "root:x:0:0::/:/bin/sh\napp:x:1234:1234::/:/bin/sh\n",
		"group":  "root:x:0:\napp:x:1234:\nmore:x:77:app\n",
	} {
		box.files["etc/"+path] = filepath.Join(d.dir, path)
		if err := os.WriteFile(box.files["etc/"+path], []byte(text), 0o644); err != nil {
			return err
		}
	}
	for name, program := range programs {
		box.files["bin/"+name] = program
	}
	return d.importAs(ctx, box)
}

func (d *Daemon) importAs(ctx context.Context, img image) error {
	archive := filepath.Join(d.dir, fmt.Sprintf("%x.tar", sha256.Sum256([]byte(img.name))))
	if err := img.write(archive); err != nil {
		return fmt.Errorf("writing the image %s: %w", img.name, err)
	}
	return d.importImage(ctx, archive, img.name)
}

func (d *Daemon) importImage(ctx context.Context, archive, name string) error {
	if err := d.runtime.family.importImage(ctx, d.dir, d.programs, archive, name); err != nil {
		return fmt.Errorf("importing the image %s into %s: %w", name, d.runtime.Name, err)
	}
	return nil
}

// image is a container image of one layer.
type image struct {
	name, user string
	entrypoint []string
	files      map[string]string // path in the image → path of the source file
	symlinks   map[string]string // path in the image → target
}

// write writes the image in the format of "docker save".
func (img image) write(path string) error {
	layer, err := img.layer()
	if err != nil {
		return err
	}
	config, err := json.Marshal(map[string]any{
		"architecture": arch,
		"os":           "linux",
		"config": map[string]any{
			"Entrypoint": img.entrypoint,
			"User":       img.user,
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
	return os.WriteFile(path, archive.Bytes(), 0o600)
}

// layer returns the tar archive of the image's file system. The same files always make the same
// archive.
func (img image) layer() ([]byte, error) {
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	for _, name := range slices.Sorted(maps.Keys(img.files)) {
		data, err := os.ReadFile(img.files[name])
		if err != nil {
			return nil, err
		}
		if err := addFile(w, name, 0o755, data); err != nil {
			return nil, err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(img.symlinks)) {
		h := &tar.Header{Name: name, Linkname: img.symlinks[name], Typeflag: tar.TypeSymlink, Mode: 0o777}
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
