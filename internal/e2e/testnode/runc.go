package testnode

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
)

// runcPath is the path of the runc that the daemon runs. At first, it is a link to the machine's
// runc. The first fault replaces the link.
func runcPath(dir string) string { return filepath.Join(dir, "bin", "runc") }

// runcFaults is the folder with the faults for runc.
func runcFaults(dir string) string { return filepath.Join(dir, "faults") }

// obedientRunc is a script that applies faults before it runs runc. In the arguments, the command
// of runc comes before the container's ID.
const obedientRunc = `#!/bin/sh
for arg; do
	name=$arg
	case $arg in create | start | exec | update | kill | delete) command=$arg name=all ;; esac
	fault=%[1]s/$command-$name
	while [ -e "$fault.hang" ]; do
		: >"$fault.met"
		sleep 0.02
	done
	if [ -e "$fault.fail" ]; then
		: >"$fault.met"
		echo "runc $command: injected failure" >&2
		exit 1
	fi
done
exec %[2]s "$@"
`

// linkRunc makes runcPath a link to the machine's runc.
func linkRunc(dir string) error {
	runc, err := exec.LookPath("runc")
	if err != nil {
		return fmt.Errorf("looking for runc: %w", err)
	}
	return errors.Join(os.Mkdir(filepath.Dir(runcPath(dir)), 0o755), os.Mkdir(runcFaults(dir), 0o755),
		os.Symlink(runc, runcPath(dir)))
}

// RuncFault is a fault of runc. Until the fault is healed, a command of runc blocks or fails, for
// one container or for all. The runtime and its shims are unchanged. Because runc makes all changes
// to containers, the fault has the same effect on them as a stuck kernel or disk.
type RuncFault struct{ path, kind string }

// BlockRunc makes a command of runc, such as update, kill or delete, block at its start. If id is
// empty, it blocks for all containers and sandboxes, and otherwise for one of them.
func (d *Daemon) BlockRunc(command, id string) (*RuncFault, error) {
	return d.injectRunc(command, id, ".hang")
}

// FailRunc makes a command of runc fail. Its arguments are those of BlockRunc.
func (d *Daemon) FailRunc(command, id string) (*RuncFault, error) {
	return d.injectRunc(command, id, ".fail")
}

func (d *Daemon) injectRunc(command, id, kind string) (*RuncFault, error) {
	if id == "" {
		id = "all"
	}
	f := &RuncFault{filepath.Join(runcFaults(d.dir), command+"-"+id), kind}
	if err := d.replaceRunc(); err != nil {
		return nil, fmt.Errorf("having runc obey: %w", err)
	}
	if err := os.WriteFile(f.path+f.kind, nil, 0o600); err != nil {
		return nil, fmt.Errorf("telling runc a fault: %w", err)
	}
	return f, nil
}

// Met reports whether runc has run into the fault.
func (f *RuncFault) Met() bool {
	_, err := os.Stat(f.path + ".met")
	return err == nil
}

// Heal ends the fault. Blocked commands continue. Another call does nothing.
func (f *RuncFault) Heal() error {
	if err := os.Remove(f.path + f.kind); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("healing runc: %w", err)
	}
	return nil
}

// replaceRunc replaces the link to the machine's runc by obedientRunc, which is slower.
func (d *Daemon) replaceRunc() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	runc, err := os.Readlink(runcPath(d.dir))
	if err != nil {
		return nil //nolint:nilerr // it is replaced already
	}
	script := runcPath(d.dir) + ".new"
	if err := os.WriteFile(script, fmt.Appendf(nil, obedientRunc, runcFaults(d.dir), runc), 0o700); err != nil {
		return err
	}
	return os.Rename(script, runcPath(d.dir))
}
