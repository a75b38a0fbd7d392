package runtime

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// conn answers each call with a function.
type conn func(method string, request any) error

func (c conn) Invoke(_ context.Context, method string, request, _ any, _ ...grpc.CallOption) error {
	return c(method, request)
}

func (conn) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, errors.New("no streams")
}

// The directory of a container's log is there when the container is created: CRI-O does not make it.
func TestLogDirectory(t *testing.T) {
	calls := 0
	c := New(conn(func(_ string, request any) error {
		calls++
		r := request.(*runtimeapi.CreateContainerRequest)
		_, err := os.Stat(filepath.Join(r.SandboxConfig.LogDirectory, filepath.Dir(r.Config.LogPath)))
		return err
	}), t.TempDir(), "")
	p := pod(v1.Container{Name: "c", Image: "i"})
	if _, err := c.CreateContainer(t.Context(), p, &p.Spec.Containers[0], "s", 0, 3); err != nil || calls != 1 {
		t.Errorf("%d calls, %v", calls, err)
	}
}
