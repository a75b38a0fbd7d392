package cri

import (
	"context"
	"fmt"

	"github.com/kubepleg/pleg"
)

// crioName is what CRI-O calls itself.
const crioName = "cri-o"

// exitStream is the target of the calls for the exit events.
var exitStream = target{kind: "the exit events"}

// errNoExitEvents is the error of a Runtime that was not told to watch exits.
var errNoExitEvents = fmt.Errorf("cri: exits are watched with WithExitEvents only: %w", pleg.ErrEventsUnsupported)

// WatchContainerExits tells exits as WithExitEvents says, until ctx ends or what tells them
// breaks, and returns the reason. They come before the runtime's lists and statuses show
// them, and before its container events: by the time that containerd and CRI-O take to clean
// up, some 40 to 70 ms, and in some failures minutes. A sandbox's exit is that of its first
// process. PodUID is empty, since the runtimes do not say it, and so the exits of containers
// of no pod are told too. The exit of a command in a container is not told. observe must not
// block.
//
// containerd's stream is accepted as that of WatchContainerEvents is. CRI-O's folder is
// watched when connected is called; files that are there already are not told. If it is
// removed, or if more exits come at once than the kernel holds for a watch, WatchContainerExits
// returns.
//
// The error wraps pleg.ErrEventsUnsupported, without a call to the runtime, if
// WithExitEvents is not given, and if the runtime is neither containerd nor a CRI-O whose
// folder was named.
func (r *Runtime) WatchContainerExits(ctx context.Context, connected func(), observe func(pleg.ContainerExit)) error {
	if !r.opts.exitEvents {
		return errNoExitEvents
	}
	// The runtime may have been replaced since the last connection.
	v, err := r.askVersion(ctx, exitStream)
	switch {
	case err != nil:
		return err
	case v.name == crioName && r.opts.exitsDir != "":
		return r.watchExitFiles(ctx, connected, observe)
	case v.name == crioName:
		return fmt.Errorf("cri: %s tells exits in files, and WithExitEvents names no folder: %w", v.name,
			pleg.ErrEventsUnsupported)
	case r.conn == nil:
		return fmt.Errorf("cri: exits are told over a connection of Connect or Dial only: %w", pleg.ErrEventsUnsupported)
	}
	return r.watchTaskExits(ctx, connected, observe)
}
