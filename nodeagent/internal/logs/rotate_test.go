package logs

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// A log that is too long is renamed, and then the runtime begins a new file. A limited number of
// older files stay. Short logs and logs of ended containers do not change. If the runtime cannot
// begin a new file, the log gets its name back.
func TestRotate(t *testing.T) {
	dir := t.TempDir()
	var reopened []string
	var err error
	p := &v1.Pod{}
	m := Manager{
		Limits: Limits{MaxSize: resource.QuantityValue{Quantity: resource.MustParse("100")}, MaxFiles: 3},
		Pods:   func() *v1.PodList { return &v1.PodList{Items: []v1.Pod{*p}} },
		Dir:    func(*v1.Pod) string { return dir },
		Reopen: func(_ context.Context, id string) error {
			reopened = append(reopened, id)
			return err
		},
	}
	running := v1.ContainerState{Running: &v1.ContainerStateRunning{}}
	p.Status.InitContainerStatuses = []v1.ContainerStatus{{Name: "dead", ContainerID: "x://dead"}}
	p.Status.ContainerStatuses = []v1.ContainerStatus{
		{Name: "long", ContainerID: "x://1", RestartCount: 2, State: running},
		{Name: "short", ContainerID: "x://2", State: running}, {Name: "none", ContainerID: "x://3", State: running},
	}
	write := func(name string, size int) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755),
			os.WriteFile(path, []byte(strings.Repeat("x", size)), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	logs := func() (names []string) {
		entries, err := os.ReadDir(filepath.Join(dir, "long"))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return names
	}
	write("dead/0.log", 100)
	write("short/0.log", 99)
	write("long/1.log", 100) // the log of an earlier instance
	for range 4 {
		synctest.Test(t, func(t *testing.T) {
			// A rotated log has the time in its name. Each round begins a second later, so the
			// names differ.
			time.Sleep(time.Duration(len(reopened)) * time.Second)
			write("long/2.log", 100)
			if err := m.rotateAll(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	if want := []string{"1", "1", "1", "1"}; !slices.Equal(reopened, want) {
		t.Errorf("reopened %q, want %q", reopened, want)
	}
	want := []string{"1.log", "2.log.20000101-000002", "2.log.20000101-000003"}
	if got := logs(); !slices.Equal(got, want) {
		t.Errorf("logs %q, want %q", got, want)
	}
	write("long/2.log", 100)
	err = errors.New("on purpose")
	if got := m.rotateAll(t.Context()); !errors.Is(got, err) || len(logs()) != 4 {
		t.Errorf("a failure: %v, logs %q", got, logs())
	}
}
