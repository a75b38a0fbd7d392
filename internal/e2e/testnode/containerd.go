package testnode

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"text/template"

	"golang.org/x/sys/unix"
)

// containerd is a version of containerd. Versions are compared as strings. This works while the
// major and minor numbers have one digit.
type containerd struct {
	version string
	// sum is the checksum of the Go module, as in a go.sum. The module's own go.sum contains the
	// checksums of its dependencies. If sum is empty, the programs come from Debian's package.
	sum string
}

// containerds are the versions that tests run on: the last patch release of each minor version.
var containerds = []containerd{
	{"1.6.20", ""},
	{"1.7.35", "h1:7AU2T1qI2OdNBmKkreWZ7kASHUNFItN5Hgejd9sY938="},
	{"2.0.14", "h1:f+wIN6XMP+EsDTD8eKc4aCTMxmb184p/ICs0KQYCYBg="},
	{"2.1.9", "h1:lOQQ3qVEtauZCHKh8S2Xph5fGXFX2uZxMHmaslOZtW0="},
	{"2.2.9", "h1:ddw9THGOXhcKnHORjkKoXtazPjwtcPwmqk8AVyRpfZw="},
	{"2.3.7", "h1:7PGbgAVKE4ieQjFPv7+kwAv7f9dCtRpExZwjExHD/Fk="},
	{"2.4.2", "h1:p6Qg+xbEz8lvwdhHDx0U469xENvp4LgGBx+E7djXkGw="},
}

// containerdPrograms are the programs that tests need.
var containerdPrograms = []string{"containerd", "containerd-shim-runc-v2", "ctr"}

func (c containerd) prepare(ctx context.Context) (string, error) {
	if err := Install(ctx, "runc"); err != nil {
		return "", err
	}
	if c.sum == "" {
		return cached(ctx, "containerd-debian-"+c.version, containerdPrograms, c.unpack)
	}
	key := fmt.Sprintf("containerd-%s-%s-%s", c.version, runtime.Version(), arch)
	return cached(ctx, key, containerdPrograms, c.build)
}

// build builds the programs in the folder of the downloaded module. This folder contains the go.mod
// and go.sum of the release, so the dependencies are those of the release.
func (c containerd) build(ctx context.Context, into string) error {
	path := "github.com/containerd/containerd"
	if c.version >= "2" {
		path += "/v2"
	}
	cmd := exec.CommandContext(ctx, "go", "mod", "download", "-json", path+"@v"+c.version)
	// The working folder is outside of every module, so that no go.mod affects the download.
	cmd.Dir, cmd.Env = into, append(os.Environ(), "GOWORK=off", "GO111MODULE=on")
	out, err := output(cmd)
	if err != nil {
		return fmt.Errorf("downloading containerd: %w", err)
	}
	var module struct{ Dir, Sum string }
	if err := json.Unmarshal([]byte(out), &module); err != nil {
		return fmt.Errorf("downloading containerd: %w", err)
	}
	if module.Sum != c.sum {
		return fmt.Errorf("downloading containerd: %s@v%s has the checksum %s, not %s", path, c.version, module.Sum, c.sum)
	}
	var packages []string
	for _, p := range containerdPrograms {
		packages = append(packages, path+"/cmd/"+p)
	}
	return goBuild(ctx, module.Dir, into, packages...)
}

// unpack unpacks Debian's package without installing it.
func (c containerd) unpack(ctx context.Context, into string) error {
	for _, args := range [][]string{
		{"apt-get", "update"},
		{"apt-get", "download", "containerd"},
		{"sh", "-c", "dpkg -x containerd_*.deb unpacked"},
	} {
		cmd := exec.CommandContext(ctx, args[0], args[1:]...)
		cmd.Dir = into
		if _, err := output(cmd); err != nil {
			return fmt.Errorf("getting Debian's containerd: %w", err)
		}
	}
	for _, p := range containerdPrograms {
		if err := os.Rename(filepath.Join(into, "unpacked", "usr", "bin", p), filepath.Join(into, p)); err != nil {
			return fmt.Errorf("getting Debian's containerd: %w", err)
		}
	}
	out, err := output(exec.CommandContext(ctx, filepath.Join(into, "containerd"), "--version"))
	if err == nil && !strings.Contains(out, " "+c.version) {
		err = fmt.Errorf("the distribution's containerd is %q, not %s", strings.TrimSpace(out), c.version)
	}
	return err
}

// containerdConfig is containerd's configuration. containerd reads no other configuration of the
// machine, and writes only below the daemon's folder. The only exception: before 2.3, the sockets
// of shims are elsewhere.
//
// The state folders of containerd and runc are in memory, as on a node, where they are in /run.
// This matters: a shim of 2.4 syncs a file there before it reports an exit.
//
// Without restrict_oom_score_adj, every sandbox would fail to set its oom_score_adj, because the
// process lacks CAP_SYS_RESOURCE. With no_sync, data survives the death of the process, but not of
// the machine. CRI's server for exec and attach is unused here, but cannot be switched off. It
// takes any free port on the loopback interface.
var containerdConfig = template.Must(template.New("config.toml").Parse(`version = {{if .V1}}2{{else}}3{{end}}
root = '{{.Dir}}/root'
state = '{{.Dir}}/state'
disabled_plugins = [
  'io.containerd.internal.v1.opt',
  'io.containerd.nri.v1.nri',
  'io.containerd.tracing.processor.v1.otlp',
  'io.containerd.internal.v1.tracing',
]

[debug]
  level = 'warn'
[grpc]
  address = '{{.Socket}}'
[ttrpc]
  address = '{{.Socket}}.ttrpc'
{{- if .SocketDir}}
[plugins.'io.containerd.shim.v1.manager']
  socket_dir = '{{.Dir}}/s'
{{- end}}
[plugins.'io.containerd.metadata.v1.bolt']
  no_sync = true
{{- if not .V1}}
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = '{{.Pause}}'
{{- end}}
[plugins.'{{.CRI}}']
{{- if .V1}}
  sandbox_image = '{{.Pause}}'
{{- end}}
  disable_apparmor = true
  restrict_oom_score_adj = true
  cdi_spec_dirs = []
[plugins.'{{.CRI}}'.cni]
  {{if .OneBinDir}}bin_dir = '{{.Dir}}/cni'{{else}}bin_dirs = ['{{.Dir}}/cni']{{end}}
  conf_dir = '{{.Dir}}/cni'
[plugins.'{{.CRI}}'.containerd.runtimes.runc]
  runtime_type = 'io.containerd.runc.v2'
[plugins.'{{.CRI}}'.containerd.runtimes.runc.options]
  BinaryName = '{{.Runc}}'
  Root = '{{.Dir}}/state/runc'
{{- if .Systemd}}
  SystemdCgroup = true
{{- end}}
`))

func (c containerd) configure(dir, _ string) error {
	state := filepath.Join(dir, "state")
	switch err := os.Mkdir(state, 0o711); {
	case errors.Is(err, fs.ErrExist): // another version of containerd made the folder
	case err != nil:
		return err
	default:
		if err := unix.Mount("tmpfs", state, "tmpfs", 0, "mode=0711"); err != nil {
			return fmt.Errorf("mounting %s: %w", state, err)
		}
	}
	values := struct {
		Dir, Socket, Pause, CRI, Runc string
		V1, OneBinDir                 bool
		SocketDir, Systemd            bool
	}{dir, c.socket(dir), PauseImage, "io.containerd.cri.v1.runtime", runcPath(dir), c.version < "2", c.version < "2.1",
		c.version >= "2.3", systemdDriver}
	if values.V1 {
		values.CRI = "io.containerd.grpc.v1.cri"
	}
	var b bytes.Buffer
	if err := containerdConfig.Execute(&b, values); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "config.toml"), b.Bytes(), 0o600)
}

// socket returns a path in the state folder, as on a node.
func (containerd) socket(dir string) string { return filepath.Join(dir, "state", "c.sock") }

func (containerd) exitsDir(string) string { return "" }

func (containerd) command(dir, programs string) []string {
	return []string{filepath.Join(programs, "containerd"), "--config", filepath.Join(dir, "config.toml")}
}

func (c containerd) importImage(ctx context.Context, dir, programs, archive, _ string) error {
	return c.ctr(ctx, dir, programs, "images", "import", archive)
}

func (c containerd) ctr(ctx context.Context, dir, programs string, args ...string) error {
	cmd := exec.CommandContext(ctx, filepath.Join(programs, "ctr"), append([]string{"-n", namespace}, args...)...)
	cmd.Env = append(os.Environ(), "CONTAINERD_ADDRESS="+c.socket(dir))
	_, err := output(cmd)
	return err
}

// Ctr runs containerd's own client. On other runtimes, it returns an error.
func (d *Daemon) Ctr(ctx context.Context, args ...string) error {
	c, is := d.runtime.family.(containerd)
	if !is {
		return fmt.Errorf("%s: %w", d.runtime.Name, errors.ErrUnsupported)
	}
	return c.ctr(ctx, d.dir, d.programs, args...)
}
