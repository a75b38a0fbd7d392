package pleg_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// removeFolders removes the folders of pods that are gone. Each folder has the UID of a pod as its
// name, and was made when a list showed that pod. The runtime may have lost its pods, and the kubelet
// makes them again, with the same UIDs: known asks the kubelet.
func removeFolders(ctx context.Context, g *pleg.GenericPLEG, root string, known func(types.UID) (bool, error)) error {
	folders, err := os.ReadDir(root) // before the list, which shows the pods of all these folders
	if err != nil {
		return err
	}
	if err := g.Relist(ctx); err != nil {
		return err // without a list, nothing is gone
	}
	var errs []error
	for _, folder := range folders {
		uid := types.UID(folder.Name())
		if _, exists, _ := g.Cache().Lookup(uid); exists {
			continue
		}
		exists, err := known(uid)
		if err == nil && !exists {
			err = os.RemoveAll(filepath.Join(root, folder.Name()))
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// removeFolders keeps the folder of a pod that exists, even if its inspection fails. It also keeps
// a folder if the kubelet knows the pod or does not answer. If the list fails, it keeps all
// folders.
func TestRemoveFolders(t *testing.T) {
	root, runtime := t.TempDir(), plegtest.NewRuntime()
	runtime.SetPods(plegtest.NewPod("web", plegtest.Running("nginx")), plegtest.NewPod("bad", plegtest.Running("app")))
	runtime.Fail(plegtest.GetPodStatus, "bad", errors.New("broken"))
	g := pleg.New(runtime)
	for _, uid := range []string{"web", "bad", "gone", "known", "unanswered"} {
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

	known := func(uid types.UID) (bool, error) { // answers for the kubelet
		if uid == "unanswered" {
			return false, errors.New("the kubelet is away")
		}
		return uid == "known", nil
	}
	heal := runtime.Fail(plegtest.GetPods, plegtest.AnyPod, errors.New("away"))
	if err := removeFolders(t.Context(), g, root, known); err == nil || len(left()) != 5 {
		t.Errorf("without a list: %v, %q", err, left())
	}
	heal()
	err := removeFolders(t.Context(), g, root, known)
	if err == nil || !slices.Equal(left(), []string{"bad", "known", "unanswered", "web"}) {
		t.Errorf("%v, %q", err, left())
	}
}
