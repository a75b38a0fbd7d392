package pleg_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
	"github.com/kubepleg/pleg/podworkers"
)

// keepFolders keeps a folder for each listed pod, with the UID as its name, until ctx ends. It removes
// other folders. The runtime may lose a pod that the kubelet makes again: known asks the kubelet, and
// fails until the kubelet knows its pods.
func keepFolders(ctx context.Context, g *pleg.GenericPLEG, root *os.Root, known func(types.UID) (bool, error)) error {
	workers := podworkers.New(g, podworkers.Options{
		Sync: func(ctx context.Context, pod *pleg.PodStatus, exists bool) (_ podworkers.Result, err error) {
			if !exists { // it may have come during an outage
				_, exists, err = g.Cache().LookupNewerThan(ctx, pod.ID, g.Clock().Now())
			}
			if exists {
				return podworkers.Result{}, root.MkdirAll(string(pod.ID), 0o700)
			}
			isKnown := true
			if err == nil {
				isKnown, err = known(pod.ID)
			}
			if isKnown || err != nil {
				return podworkers.Result{After: time.Minute}, err // Sync is called again
			}
			return podworkers.Result{}, root.RemoveAll(string(pod.ID))
		},
	})
	if err := g.WaitForSync(ctx); err != nil {
		return err // without a list, nothing is gone
	}
	folders, err := fs.ReadDir(root.FS(), ".") // also those of pods that have gone meanwhile
	for _, folder := range folders {
		if folder.IsDir() {
			workers.Add(ctx, types.UID(folder.Name()))
		}
	}
	return errors.Join(err, workers.Run(ctx, nil))
}

// keepFolders keeps the folder of a listed pod, even if the pod's inspection fails. It also keeps a
// folder as long as the kubelet knows the pod or does not answer, and while the runtime is away. A pod
// that comes back gets a folder. A file is none.
func TestKeepFolders(t *testing.T) {
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	for _, uid := range []string{"bad", "gone", "known", "unanswered"} {
		if err := root.Mkdir(uid, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := root.WriteFile("file", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		runtime := plegtest.NewRuntime()
		web := plegtest.NewPod("web", plegtest.Running("nginx"))
		runtime.SetPods(web, plegtest.NewPod("bad", plegtest.Running("app")))
		runtime.Fail(plegtest.GetPodStatus, "bad", errors.New("broken"))
		left := func(want ...string) {
			t.Helper()
			time.Sleep(2 * time.Minute)
			folders, err := os.ReadDir(dir)
			var names []string
			for _, folder := range folders {
				names = append(names, folder.Name())
			}
			if err != nil || !slices.Equal(names, want) {
				t.Errorf("%q, %v; want %q", names, err, want)
			}
		}
		var later atomic.Bool // true if the kubelet answers, and knows only the pod kept
		var kept atomic.Value // a UID
		kept.Store("")
		heal := runtime.Fail(plegtest.GetPods, plegtest.AnyPod, errors.New("away"))
		g := pleg.New(runtime)
		g.Start(t.Context())
		defer g.Stop()
		ctx, stop := context.WithCancelCause(t.Context())
		ended := make(chan error)
		go func() {
			ended <- keepFolders(ctx, g, root, func(uid types.UID) (bool, error) {
				if uid == "unanswered" && !later.Load() {
					return false, errors.New("the kubelet is away")
				}
				return uid == "known" && !later.Load() || string(uid) == kept.Load(), nil
			})
		}()
		left("bad", "file", "gone", "known", "unanswered") // there is no list yet
		heal()
		left("bad", "file", "known", "unanswered", "web")
		later.Store(true)
		runtime.RemovePod("web")
		left("bad", "file")
		runtime.SetPod(web)
		left("bad", "file", "web")
		// A pod comes back while the runtime is away, and the kubelet forgets it.
		runtime.RemovePod("web")
		later.Store(false)
		kept.Store("web")
		time.Sleep(time.Minute)
		lists, pods := runtime.Fail(plegtest.GetPods, plegtest.AnyPod, errors.New("away")),
			runtime.Fail(plegtest.GetPod, plegtest.AnyPod, errors.New("away"))
		runtime.SetPod(web)
		later.Store(true)
		kept.Store("")
		left("bad", "file", "web")
		lists()
		pods()
		left("bad", "file", "web")
		end := errors.New("the end")
		stop(end)
		if err := <-ended; !errors.Is(err, end) {
			t.Error(err)
		}
	})
}
