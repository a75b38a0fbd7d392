package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kubepleg/pleg/internal/e2e/testnode"
)

//go:embed guest
var guest embed.FS

// guestFiles maps the files in the folder guest to their paths on a node.
var guestFiles = map[string]string{
	"init": "init", "boot": "node/boot", "run": "node/run", "go": "node/bin/go",
	"node.service": "etc/systemd/system/node.service",
}

// textFiles are files on a node that no package contains.
var textFiles = map[string]string{
	"etc/passwd":      "root:x:0:0:root:/root:/bin/sh\n",
	"etc/group":       "root:x:0:\n",
	"etc/hosts":       "127.0.0.1 localhost node\n",
	"etc/resolv.conf": "",
}

var folders = []string{
	"dev", "newroot", "node/bin", "node/busybox", "proc", "root", "run", "src/internal/e2e", "src/.cache",
	"sys/fs/cgroup", "tmp", "var/tmp",
}

// image writes the initramfs of a node into a folder. The initramfs is the whole disk of the node.
// image returns the paths of the kernel and the initramfs.
func (c cell) image(ctx context.Context, root, into string) (kernel, initrd string, err error) {
	// The packages are below .cache, so that later runs and other nodes find them.
	cache := filepath.Join(root, ".cache", "nodes", c.arch)
	packages := append(append([]string{}, basePackages...), c.packages...)
	if c.runtime == "crio" {
		packages = append(packages, crioPackages...)
	}
	system := filepath.Join(cache, strings.Join(packages, "+"))
	if err := unpack(ctx, c.arch, cache, system, packages...); err != nil {
		return "", "", err
	}
	boot := filepath.Join(cache, c.kernel)
	if err := unpack(ctx, c.arch, cache, boot, c.kernel); err != nil {
		return "", "", err
	}
	if kernel, err = only(filepath.Join(boot, "boot", "vmlinuz-*")); err != nil {
		return "", "", err
	}
	overlay, err := module(ctx, boot, "overlay")
	if err != nil {
		return "", "", err
	}
	programs, images, err := testnode.Prepare(ctx, c.runtime, c.arch, filepath.Join(system, "bin", "busybox"))
	if err != nil {
		return "", "", err
	}
	newest := programs
	if c.runtime == "containerd-1.7" { // a test upgrades containerd 1.7 to the default runtime
		newest, _, err = testnode.Prepare(ctx, testnode.DefaultRuntime, c.arch, filepath.Join(system, "bin", "busybox"))
		if err != nil {
			return "", "", err
		}
	}
	test := filepath.Join(into, "e2e.test")
	build := exec.CommandContext(ctx, "go", "test", "-c", "-vet=off", "-trimpath", "-ldflags=-s -w", "-o", test, ".")
	build.Dir = filepath.Join(root, "internal", "e2e")
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOARCH="+c.arch)
	if err := output(build); err != nil {
		return "", "", err
	}

	initrd = filepath.Join(into, "initrd.gz")
	file, err := os.Create(initrd)
	if err != nil {
		return "", "", err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	compressed, err := gzip.NewWriterLevel(file, gzip.BestSpeed)
	if err != nil {
		return "", "", err
	}
	a := &archive{w: compressed, has: map[string]bool{}}
	for _, f := range folders {
		a.folder(f)
	}
	a.add("bin/sh", 0o777|unix.S_IFLNK, []byte("busybox"))
	for name, text := range textFiles {
		a.add(name, 0o644|unix.S_IFREG, []byte(text))
	}
	for name, path := range guestFiles {
		text, err := guest.ReadFile("guest/" + name)
		a.fail(err)
		mode := uint32(0o755)
		if filepath.Ext(name) == ".service" {
			mode = 0o644
		}
		a.add(path, mode|unix.S_IFREG, text)
	}
	a.add("node/overlay.ko", 0o644|unix.S_IFREG, overlay)
	a.file("node/e2e.test", test)
	a.tree("", system)
	a.tree(filepath.Join("src", ".cache", filepath.Base(programs)), programs)
	// If newest and programs are the same folder, this call adds nothing.
	a.tree(filepath.Join("src", ".cache", filepath.Base(newest)), newest)
	a.tree(filepath.Join("src", ".cache", filepath.Base(images)), images)
	return kernel, initrd, errors.Join(a.end(), compressed.Close())
}

// unpack unpacks packages and their dependencies into a folder, unless the folder exists. apt-get
// resolves the packages as for an empty machine, and does not change this machine's package lists.
func unpack(ctx context.Context, arch, cache, into string, packages ...string) error {
	if _, err := os.Stat(into); err == nil {
		return nil
	}
	apt := filepath.Join(cache, "apt")
	archives := filepath.Join(apt, "archives")
	for _, dir := range []string{filepath.Join(apt, "lists", "partial"), filepath.Join(archives, "partial")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	status := filepath.Join(apt, "status")
	if err := os.WriteFile(status, nil, 0o644); err != nil {
		return err
	}
	options := []string{
		"-q", "-y", "--no-install-recommends", "--download-only",
		"-oAPT::Architecture=" + arch, "-oAPT::Architectures=" + arch,
		"-oDir::State=" + apt, "-oDir::State::status=" + status, "-oDir::Cache=" + apt,
	}
	if err := output(exec.CommandContext(ctx, "apt-get", append(options, "update")...)); err != nil {
		return err
	}
	// An earlier call may have downloaded other packages.
	if err := removeAll(filepath.Join(archives, "*.deb")); err != nil {
		return err
	}
	if err := output(exec.CommandContext(ctx, "apt-get", append(append(options, "install"), packages...)...)); err != nil {
		return err
	}
	debs, err := filepath.Glob(filepath.Join(archives, "*.deb"))
	if err != nil {
		return err
	}
	unfinished := into + ".new"
	if err := os.RemoveAll(unfinished); err != nil {
		return err
	}
	for _, deb := range debs {
		if err := output(exec.CommandContext(ctx, "dpkg-deb", "-x", deb, unfinished)); err != nil {
			return err
		}
	}
	return os.Rename(unfinished, into)
}

func removeAll(pattern string) error {
	found, err := filepath.Glob(pattern)
	for _, f := range found {
		err = errors.Join(err, os.Remove(f))
	}
	return err
}

// only is for a pattern that matches exactly one file. It returns the path of that file.
func only(pattern string) (string, error) {
	found, err := filepath.Glob(pattern)
	if err == nil && len(found) != 1 {
		err = fmt.Errorf("%d files match %s, not one", len(found), pattern)
	}
	if err != nil {
		return "", err
	}
	return found[0], nil
}

// module returns a kernel module, decompressed.
func module(ctx context.Context, boot, name string) ([]byte, error) {
	path, err := only(filepath.Join(boot, "lib", "modules", "*", "kernel", "fs", name+"fs", name+".ko*"))
	if err != nil {
		return nil, err
	}
	if strings.HasSuffix(path, ".xz") {
		return exec.CommandContext(ctx, "xz", "-dc", path).Output()
	}
	return os.ReadFile(path)
}

// output runs a command. The error includes the end of the command's output.
func output(cmd *exec.Cmd) error {
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", cmd, err, tail(string(out), 20))
	}
	return nil
}

// archive writes a cpio archive in newc format. For each path, it keeps only the first file.
type archive struct {
	w       io.Writer
	has     map[string]bool
	inode   int
	failure error
}

func (a *archive) fail(err error) { a.failure = errors.Join(a.failure, err) }

// folder adds a folder and its parents.
func (a *archive) folder(path string) {
	if path == "." || path == "" || a.has[path] {
		return
	}
	a.folder(filepath.Dir(path))
	a.add(path, 0o755|unix.S_IFDIR, nil)
}

// add adds a file. The mode includes the file type. The content of a symbolic link is its target.
func (a *archive) add(path string, mode uint32, content []byte) {
	if a.has[path] || a.failure != nil {
		return
	}
	if path != trailer {
		a.folder(filepath.Dir(path))
	}
	a.has[path] = true
	a.inode++
	var b bytes.Buffer
	// The fields are: inode, mode, uid, gid, links, mtime, size, four device numbers, length of the
	// name, checksum.
	fmt.Fprintf(&b, "070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X", a.inode, mode, 0, 0, 1, 0,
		len(content), 0, 0, 0, 0, len(path)+1, 0)
	b.WriteString(path + "\x00")
	pad(&b)
	b.Write(content)
	pad(&b)
	_, err := a.w.Write(b.Bytes())
	a.fail(err)
}

// pad adds zero bytes up to a multiple of four.
func pad(b *bytes.Buffer) { b.Write(make([]byte, -b.Len()&3)) }

// file adds an executable file.
func (a *archive) file(path, from string) {
	content, err := os.ReadFile(from)
	a.fail(err)
	a.add(path, 0o755|unix.S_IFREG, content)
}

// tree adds everything below a folder except unwanted folders.
func (a *archive) tree(path, from string) {
	a.fail(filepath.WalkDir(from, func(name string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		below, err := filepath.Rel(from, name)
		if err != nil {
			return err
		}
		if e.IsDir() && unwanted[below] {
			return fs.SkipDir
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		to, mode := filepath.Join(path, below), uint32(info.Mode().Perm())
		switch info.Mode().Type() {
		case fs.ModeDir:
			a.folder(to)
		case fs.ModeSymlink:
			target, err := os.Readlink(name)
			a.fail(err)
			a.add(to, 0o777|unix.S_IFLNK, []byte(target))
		case 0:
			content, err := os.ReadFile(name)
			a.fail(err)
			a.add(to, mode|unix.S_IFREG, content)
		default: // packages contain no devices or sockets
		}
		return a.failure
	}))
}

// unwanted are folders of packages that no node needs.
var unwanted = map[string]bool{
	"usr/share/doc": true, "usr/share/man": true, "usr/share/locale": true, "usr/share/info": true, "usr/share/perl": true,
	"usr/lib/modules": true, "usr/share/zoneinfo": true,
}

const trailer = "TRAILER!!!"

func (a *archive) end() error {
	a.add(trailer, 0, nil)
	return a.failure
}
