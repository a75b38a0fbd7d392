package images

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"
)

// conn is a gRPC connection that passes each call to a function.
type conn func(request, response any) error

func (c conn) Invoke(_ context.Context, _ string, request, response any, _ ...grpc.CallOption) error {
	return c(request, response)
}

func (conn) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, errors.New("no streams")
}

// When the disk is full, unused images are removed. The least recently used image is
// removed first. New, pinned and used images stay.
func TestCollect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		images := map[string]*runtimeapi.Image{}
		inUse, removed := "", []string{}
		g := NewGarbageCollector(conn(func(request, response any) error {
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
		}), Limits{MinAge: 2 * time.Minute}, klog.Logger{})
		add := func(id string, size uint64) {
			images[id] = &runtimeapi.Image{Id: id, RepoTags: []string{"name/" + id}, Size: size, Pinned: id == "pinned"}
		}
		collect := func(high int, want string) {
			t.Helper()
			removed = nil
			g.HighPercent = high
			err := g.collect(t.Context())
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
		if err := g.collect(t.Context()); err == nil {
			t.Error("a missing disk has room")
		}
	})
}
