package cri

import (
	"cmp"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// searchPeriod is how long a full list may run before a search begins, and the time between the
// search's Version calls.
const searchPeriod = 3 * time.Second

// maxConfig is the size limit of a container's OCI specification, in bytes.
const maxConfig = 1 << 20

// search finds out what a slow full list waits for: the runtime, or a container that blocks the
// runtime's lists. It asks for the version every searchPeriod, so that CallsInFlight shows whether
// the runtime answers. On containerd, it also asks for the status of each container that no full
// list has shown; the generator asks about the other containers. The call for the container that
// blocks the lists stays in flight. If the last full list timed out, the search begins at once.
//
// stop ends the search and waits for its end.
func (r *Runtime) search(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Add(1)
	wait := searchPeriod
	if r.listTimedOut {
		wait = 0
	}
	timer := time.AfterFunc(wait, func() {
		defer running.Done()
		var questions sync.WaitGroup
		defer questions.Wait()
		ticker := time.NewTicker(searchPeriod)
		defer ticker.Stop()
		for asked := false; ctx.Err() == nil; {
			if _, err := r.askVersion(ctx, target{}); err == nil && !asked {
				asked = true
				questions.Go(func() { r.askUnlisted(ctx) })
			}
			select {
			case <-ctx.Done():
			case <-ticker.C:
			}
		}
	})
	return func() {
		cancel()
		if timer.Stop() {
			running.Done()
		}
		running.Wait()
	}
}

// askUnlisted asks for the status of containers that have a bundle but were in no full list. It
// makes up to maxPodQuestions calls at once.
func (r *Runtime) askUnlisted(ctx context.Context) {
	dir, _ := r.bundles()
	if dir == "" {
		return
	}
	bundles, _ := os.ReadDir(dir) // after an error, the bundles read so far are enough
	var questions errgroup.Group
	questions.SetLimit(maxPodQuestions)
	for _, bundle := range bundles[:min(len(bundles), maxReported)] {
		if of, is := unlisted(dir, bundle.Name()); is && r.held.podOf(of.id) == "" {
			questions.Go(func() error {
				_, err := r.askStatus(ctx, of)
				return err
			})
		}
	}
	_ = questions.Wait() // an error is an answer too
}

// unlisted returns the container of a bundle. The names in the result come from the annotations
// that containerd's CRI adds to the OCI specification. The second result is false if the bundle
// belongs to a sandbox.
func unlisted(dir, id string) (of target, is bool) {
	content, _, err := readSmallFile(filepath.Join(dir, id, "config.json"), maxConfig)
	var spec struct{ Annotations map[string]string }
	if err == nil {
		_ = json.Unmarshal(content, &spec) // if it cannot be decoded, the names stay empty
	}
	of = target{kind: "container", id: id, podUID: types.UID(spec.Annotations["io.kubernetes.cri.sandbox-uid"])}
	if name := spec.Annotations["io.kubernetes.cri.container-name"]; name != "" {
		of.name = spec.Annotations["io.kubernetes.cri.sandbox-namespace"] + "/" +
			spec.Annotations["io.kubernetes.cri.sandbox-name"] + "/" + name
	}
	return of, cmp.Or(spec.Annotations["io.kubernetes.cri.container-type"], "container") == "container"
}

// askStatus makes one ContainerStatus call, without the rest of an inspection.
func (r *Runtime) askStatus(ctx context.Context, of target) (status *runtimeapi.ContainerStatus, err error) {
	err = r.do(ctx, rpcContainerStatus, of, func() error {
		resp, err := r.client.containerStatus(ctx,
			&runtimeapi.ContainerStatusRequest{ContainerId: of.id}, grpc.ForceCodecV2(&statusCodec{}))
		status = resp.GetStatus()
		return err
	})
	return status, err
}
