package testnode

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"text/template"
)

// crioVersion is the version of CRI-O. Neither a Go module proxy nor Debian offers its programs.
const (
	crioVersion = "1.37.0"
	crioSum     = "2513bc00cd701a58d02f0169c6d94a8bb14ae430ea1204af3167ea98411de6ae"
	pinnsSum    = "e347198a382579db5ed340747f7ab9a63143f12643f6bd15f31e4d4dde650f48"
)

// crio is CRI-O, with or without its event stream.
type crio struct{ events bool }

func (crio) prepare(ctx context.Context) (string, error) {
	if err := Install(ctx, "runc", "conmon", "skopeo", "xz"); err != nil {
		return "", err
	}
	return cached(ctx, "crio-"+crioVersion+"-"+crioSum[:12], []string{"crio", "pinns"}, unpackCRIO)
}

// unpackCRIO copies the programs from crioFolder.
func unpackCRIO(ctx context.Context, into string) error {
	if crioFolder == "" {
		return errors.New("its programs are in no public place: name the folder that has crio or crio.xz, and pinns, " +
			"with -crio or " + crioVariable)
	}
	program, err := os.ReadFile(filepath.Join(crioFolder, "crio"))
	if errors.Is(err, os.ErrNotExist) {
		var out string
		out, err = output(exec.CommandContext(ctx, "xz", "-dc", filepath.Join(crioFolder, "crio.xz")))
		program = []byte(out)
	}
	if err != nil {
		return fmt.Errorf("reading CRI-O: %w", err)
	}
	pinns, err := os.ReadFile(filepath.Join(crioFolder, "pinns"))
	if err != nil {
		return fmt.Errorf("reading CRI-O's pinns: %w", err)
	}
	for _, p := range []struct {
		name, sum string
		content   []byte
	}{{"crio", crioSum, program}, {"pinns", pinnsSum, pinns}} {
		if sum := fmt.Sprintf("%x", sha256.Sum256(p.content)); sum != p.sum {
			return fmt.Errorf("%s in %s has the SHA-256 %s, not %s", p.name, crioFolder, sum, p.sum)
		}
		if err := os.WriteFile(filepath.Join(into, p.name), p.content, 0o755); err != nil {
			return err
		}
	}
	return nil
}

// crioConfig is CRI-O's configuration. CRI-O writes only below the daemon's folder.
//
// With drop_infra_ctr, a sandbox has no process. Such a process would fail to set its
// oom_score_adj, because it lacks CAP_SYS_RESOURCE.
var crioConfig = template.Must(template.New("config.toml").Parse(`[crio]
root = "{{.Dir}}/root"
runroot = "{{.Dir}}/runroot"
storage_driver = "overlay"
log_dir = "{{.Dir}}/log"
version_file = "{{.Dir}}/version"
version_file_persist = ""
clean_shutdown_file = "{{.Dir}}/clean.shutdown"
internal_wipe = false
internal_repair = false
[crio.api]
listen = "{{.Dir}}/run/c.sock"
stream_address = "127.0.0.1"
stream_port = "0"
[crio.image]
pause_image = "{{.Pause}}"
pause_command = "/pause"
signature_policy = "{{.Dir}}/policy.json"
image_volumes = "ignore"
[crio.network]
network_dir = "{{.Dir}}/cni"
plugin_dirs = ["{{.Dir}}/cni"]
[crio.nri]
enable_nri = false
[crio.metrics]
enable_metrics = false
[crio.runtime]
default_runtime = "runc"
cgroup_manager = "cgroupfs"
drop_infra_ctr = true
enable_pod_events = {{.Events}}
selinux = false
container_exits_dir = "{{.Dir}}/exits"
container_attach_socket_dir = "{{.Dir}}/attach"
namespaces_dir = "{{.Dir}}/ns"
pinns_path = "{{.Programs}}/pinns"
hooks_dir = []
cdi_spec_dirs = []
disable_hostport_mapping = true
irqbalance_config_restore_file = "disable"
log_level = "warn"
[crio.runtime.runtimes.runc]
runtime_path = "{{.Dir}}/runc"
runtime_type = "oci"
runtime_root = "{{.Dir}}/oci"
monitor_path = "{{.Conmon}}"
monitor_cgroup = "pod"
`))

// crioRunc is the runc that CRI-O runs. It removes two settings of a kubelet. Limits of huge pages
// need the cgroup controller of huge pages. A negative oom_score_adj needs CAP_SYS_RESOURCE.
// containerd can be configured to leave out both settings; CRI-O cannot.
const crioRunc = `#!/bin/sh
for arg; do
	if [ "$before" = --bundle ]; then
		sed -i 's/"hugepageLimits"/"leftOut"/; s/"oomScoreAdj": *-[0-9]*/"oomScoreAdj": 0/' "$arg/config.json" || exit
	fi
	before=$arg
done
exec %s "$@"
`

func (c crio) configure(dir, programs string) error {
	values := struct {
		Dir, Programs, Pause, Conmon string
		Events                       bool
	}{Dir: dir, Programs: programs, Pause: PauseImage, Events: c.events}
	var err error
	if values.Conmon, err = exec.LookPath("conmon"); err != nil {
		return err
	}
	for _, d := range []string{"cni", "exits", "attach", "ns", "log", "oci", "run"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			return err
		}
	}
	var b bytes.Buffer
	if err := crioConfig.Execute(&b, values); err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(filepath.Join(dir, "runc"), fmt.Appendf(nil, crioRunc, runcPath(dir)), 0o700),
		os.WriteFile(filepath.Join(dir, "config.toml"), b.Bytes(), 0o600),
		os.WriteFile(filepath.Join(dir, "policy.json"), []byte(`{"default":[{"type":"insecureAcceptAnything"}]}`), 0o600),
	)
}

// socket returns a path in a folder of its own, as on a node. A pod that mounts the folder of
// CRI-O's storage needs shared mounts, so the socket is in another folder.
func (crio) socket(dir string) string { return filepath.Join(dir, "run", "c.sock") }

func (crio) exitsDir(dir string) string { return filepath.Join(dir, "exits") }

func (crio) command(dir, programs string) []string {
	return []string{filepath.Join(programs, "crio"), "--config", filepath.Join(dir, "config.toml"), "--config-dir", ""}
}

// importImage copies the archive into the store that CRI-O and its tools share.
func (crio) importImage(ctx context.Context, dir, _, archive, name string) error {
	store := fmt.Sprintf("containers-storage:[overlay@%[1]s/root+%[1]s/runroot]%[2]s", dir, name)
	cmd := exec.CommandContext(ctx, "skopeo", "--insecure-policy", "copy", "docker-archive:"+archive, store)
	// With the first variable, skopeo stores its cache in the folder of the second variable,
	// instead of below /var/lib.
	cmd.Env = append(os.Environ(), "_CONTAINERS_ROOTLESS_UID=1", "XDG_DATA_HOME="+dir)
	_, err := output(cmd)
	return err
}
