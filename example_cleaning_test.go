package pleg_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// removeFolders removes the folders of pods that are gone. Each folder has the UID of a pod as its
// name, and was made when a list showed that pod.
func removeFolders(ctx context.Context, g *pleg.GenericPLEG, root string) error {
	folders, err := os.ReadDir(root) // before the list, which shows the pods of all these folders
	if err != nil {
		return err
	}
	if err := g.Relist(ctx); err != nil {
		return err // without a list, nothing is gone
	}
	var errs []error
	for _, folder := range folders {
		if _, exists, _ := g.Cache().Lookup(types.UID(folder.Name())); !exists {
			errs = append(errs, os.RemoveAll(filepath.Join(root, folder.Name())))
		}
	}
	return errors.Join(errs...)
}

// Folders of pods that exist stay, also if the pod cannot be inspected. If the list fails, all stay.
func TestRemoveFolders(t *testing.T) {
	root, runtime := t.TempDir(), plegtest.NewRuntime()
	runtime.SetPods(plegtest.NewPod("web", plegtest.Running("nginx")), plegtest.NewPod("bad", plegtest.Running("app")))
	runtime.Fail(plegtest.GetPodStatus, "bad", errors.New("broken"))
	g := pleg.NewGenericPLEG(runtime, 10, time.Second, pleg.NewCache(), clock.RealClock{})
	for _, uid := range []string{"web", "bad", "gone"} {
		if err := os.Mkdir(filepath.Join(root, uid), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	left := func() (names []string) {
		folders, err := os.ReadDir(root)
		if err != nil {
			t.Fatal(err)
		}
		for _, folder := range folders {
			names = append(names, folder.Name())
		}
		return names
	}

	heal := runtime.Fail(plegtest.GetPods, plegtest.AnyPod, errors.New("away"))
	if err := removeFolders(t.Context(), g, root); err == nil || len(left()) != 3 {
		t.Errorf("without a list: %v, %q", err, left())
	}
	heal()
	if err := removeFolders(t.Context(), g, root); err != nil || !slices.Equal(left(), []string{"bad", "web"}) {
		t.Errorf("%v, %q", err, left())
	}
}
