package runtime

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// rotateLogs renames a log that is too long, and then the runtime begins a new file. rotateLogs
// keeps a limited number of older files. It does not change short logs and logs of ended
// containers. If the runtime cannot begin a new file, the log gets its name back.
func TestRotateLogs(t *testing.T) {
	dir := t.TempDir()
	var reopened []string
	var err error
	c := New(conn(func(request, _ any) error {
		reopened = append(reopened, request.(*runtimeapi.ReopenContainerLogRequest).ContainerId)
		return err
	}), dir, "")
	p := pod(v1.Container{Name: "long"})
	running := v1.ContainerState{Running: &v1.ContainerStateRunning{}}
	p.Status.InitContainerStatuses = []v1.ContainerStatus{{Name: "dead", ContainerID: "x://dead"}}
	p.Status.ContainerStatuses = []v1.ContainerStatus{
		{Name: "long", ContainerID: "x://1", RestartCount: 2, State: running},
		{Name: "short", ContainerID: "x://2", State: running}, {Name: "none", ContainerID: "x://3", State: running},
	}
	write := func(name string, size int) {
		t.Helper()
		path := filepath.Join(c.LogDir(p), name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755),
			os.WriteFile(path, []byte(strings.Repeat("x", size)), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	logs := func() (names []string) {
		entries, err := os.ReadDir(filepath.Join(c.LogDir(p), "long"))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return names
	}
	limits := Limits{LogSize: resource.QuantityValue{Quantity: resource.MustParse("100")}, LogFiles: 3}
	write("dead/0.log", 100)
	write("short/0.log", 99)
	write("long/1.log", 100) // the log of an earlier instance
	for range 4 {
		synctest.Test(t, func(t *testing.T) {
			// A rotated log has the time in its name. Each round begins a second later, so the
			// names differ.
			time.Sleep(time.Duration(len(reopened)) * time.Second)
			write("long/2.log", 100)
			if err := c.rotateLogs(t.Context(), limits, []v1.Pod{*p}); err != nil {
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
	if got := c.rotateLogs(t.Context(), limits, []v1.Pod{*p}); !errors.Is(got, err) || len(logs()) != 4 {
		t.Errorf("a failure: %v, logs %q", got, logs())
	}
}

// When the disk is full, collectImages removes unused images. The least recently used image is
// removed first. New, pinned and used images stay.
func TestCollectImages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		images := map[string]*runtimeapi.Image{}
		inUse, removed := "", []string{}
		c := New(conn(func(request, response any) error {
			switch r := response.(type) {
			case *runtimeapi.ImageFsInfoResponse:
				r.ImageFilesystems = []*runtimeapi.FilesystemUsage{{FsId: &runtimeapi.FilesystemIdentifier{Mountpoint: dir}}}
			case *runtimeapi.ListImagesResponse:
				for _, image := range images {
					r.Images = append(r.Images, image)
				}
			case *runtimeapi.ListContainersResponse:
				r.Containers = []*runtimeapi.Container{{Image: &runtimeapi.ImageSpec{Image: inUse}}}
			case *runtimeapi.RemoveImageResponse:
				id := request.(*runtimeapi.RemoveImageRequest).Image.Image
				if removed = append(removed, id); id == "stuck" {
					return errors.New("on purpose")
				}
				delete(images, id)
			}
			return nil
		}), dir, "")
		add := func(id string, size uint64) {
			images[id] = &runtimeapi.Image{Id: id, RepoTags: []string{"name/" + id}, Size: size, Pinned: id == "pinned"}
		}
		known := map[string]time.Time{}
		collect := func(high int, want string) {
			t.Helper()
			removed = nil
			err := c.collectImages(t.Context(), Limits{ImagesHigh: high, ImageAge: 2 * time.Minute}, known)
			if got := fmt.Sprint(removed); got != want || (err != nil) != strings.Contains(want, "stuck") {
				t.Errorf("removed %s, %v, want %s", got, err, want)
			}
		}
		const huge = 1 << 60
		for _, id := range []string{"a", "b", "pinned"} {
			add(id, 1)
		}
		const full, room = 0, 101
		inUse = "name/a"
		collect(full, "[]") // all images are new
		time.Sleep(time.Minute)
		inUse = "b"
		collect(full, "[]")
		add("stuck", 1)
		time.Sleep(2 * time.Minute)
		inUse = ""
		collect(room, "[]")
		collect(full, "[a b]")
		add("c", huge)
		add("d", huge)
		time.Sleep(2 * time.Minute)
		collect(full, "[stuck]") // c and d are new
		inUse = "d"
		time.Sleep(2 * time.Minute)
		collect(full, "[stuck c]") // the removal of c makes enough room
		add("e", huge)
		collect(full, "[stuck]")
		time.Sleep(time.Minute)
		collect(full, "[stuck]")
		inUse = ""
		time.Sleep(2 * time.Minute)
		delete(images, "stuck")
		collect(full, "[e]") // e has been unused for longer than the image d
		dir = filepath.Join(dir, "none")
		if err := c.collectImages(t.Context(), Limits{}, known); err == nil {
			t.Error("a missing disk has room")
		}
	})
}
