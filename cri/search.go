package cri

import (
	"cmp"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	// searchPeriod is how long a full list may run before a search begins, and the time between the
	// search's Version calls.
	searchPeriod = 3 * time.Second
	// searchKept is how long a search goes on after its list has timed out and before the next list.
	searchKept = 3 * time.Second
)

// maxConfig is the size limit of a container's OCI specification, in bytes.
const maxConfig = 1 << 20

// search finds out what slow full lists wait for: the runtime, or a container that blocks the
// runtime's lists. It asks for the version every searchPeriod, so that CallsInFlight shows whether
// the runtime answers. On containerd, it also asks for the status of each container that no full
// list has shown; the generator asks about the other containers. The call for the container that
// blocks the lists stays in flight, also while one list has timed out and the next has not begun.
type search struct {
	cancel   context.CancelFunc
	running  sync.WaitGroup
	kept     *time.Timer // cancels a search that no list uses
	newList  atomic.Bool // true if the containers must be asked for again, because another list began
	inFlight atomic.Bool // true while the containers are asked for
}

// beginSearch returns the search for a full list: a new one, or the one of a list that has timed out.
func (r *Runtime) beginSearch(ctx context.Context) *search {
	if s := r.searching; s != nil {
		r.searching = nil
		if s.kept.Stop() {
			s.newList.Store(true)
			return s
		}
	}
	s := new(search)
	ctx, s.cancel = context.WithCancel(context.WithoutCancel(ctx)) // it may outlive the list
	s.newList.Store(true)
	s.running.Go(func() { r.run(ctx, s) })
	return s
}

// endSearch ends a search and waits for its end. If the list has timed out, the search goes on for
// searchKept, or until Close.
func (r *Runtime) endSearch(s *search, timedOut bool) {
	if timedOut && !r.closed.Load() {
		r.searching = s
		s.kept = time.AfterFunc(searchKept, s.cancel)
		return
	}
	s.cancel()
	s.running.Wait()
}

// run makes the calls of a search until ctx ends.
func (r *Runtime) run(ctx context.Context, s *search) {
	ticker := time.NewTicker(searchPeriod)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if _, err := r.askVersion(ctx, target{}); err != nil || s.inFlight.Load() || !s.newList.Swap(false) {
			continue
		}
		s.inFlight.Store(true)
		s.running.Go(func() {
			defer s.inFlight.Store(false)
			r.askUnlisted(ctx)
		})
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
