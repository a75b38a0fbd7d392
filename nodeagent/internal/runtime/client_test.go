package runtime

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"
)

// conn is a gRPC connection that passes each call to a function.
type conn func(request, response any) error

func (c conn) Invoke(_ context.Context, _ string, request, response any, _ ...grpc.CallOption) error {
	return c(request, response)
}

func (conn) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, errors.New("no streams")
}

// created calls CreateContainer for a pod's first container, and returns the request that the
// runtime got. The parameter image is what the runtime reports as the container's image.
func created(t *testing.T, p *v1.Pod, image *runtimeapi.Image) (*runtimeapi.CreateContainerRequest, error) {
	t.Helper()
	var asked *runtimeapi.CreateContainerRequest
	c := New(conn(func(request, response any) error {
		switch r := request.(type) {
		case *runtimeapi.ImageStatusRequest:
			response.(*runtimeapi.ImageStatusResponse).Image = image
		case *runtimeapi.CreateContainerRequest:
			asked = r
			// The directory of the log must exist, because CRI-O does not create it.
			_, err := os.Stat(filepath.Join(r.SandboxConfig.LogDirectory, filepath.Dir(r.Config.LogPath)))
			return err
		}
		return nil
	}), t.TempDir(), "")
	_, err := c.CreateContainer(t.Context(), p, &p.Spec.Containers[0], "s", 0, 3)
	if (asked == nil) == (err == nil) {
		t.Errorf("asked for %v, %v", asked, err)
	}
	return asked, err
}

// If the manifest names no user, a container runs as the image's user. If runAsNonRoot is set and
// the container would or might run as root, CreateContainer fails.
func TestUser(t *testing.T) {
	numeric := &runtimeapi.Image{Uid: &runtimeapi.Int64Value{Value: 1234}}
	named, root := &runtimeapi.Image{Username: "app"}, &runtimeapi.Image{}
	zero, user, group, yes, no := ptr.To[int64](0), ptr.To[int64](7), ptr.To[int64](42), ptr.To(true), ptr.To(false)
	for _, c := range []struct {
		image     *runtimeapi.Image
		of        v1.PodSecurityContext
		container v1.SecurityContext
		want      string
	}{
		{numeric, v1.PodSecurityContext{}, v1.SecurityContext{RunAsGroup: group}, "1234:42"},
		{numeric, v1.PodSecurityContext{RunAsGroup: group}, v1.SecurityContext{}, "1234:42"},
		{named, v1.PodSecurityContext{}, v1.SecurityContext{RunAsGroup: group}, "app:42"},
		{named, v1.PodSecurityContext{}, v1.SecurityContext{}, "app:"},
		{root, v1.PodSecurityContext{}, v1.SecurityContext{RunAsGroup: group}, "0:42"},
		{named, v1.PodSecurityContext{RunAsUser: zero}, v1.SecurityContext{RunAsUser: user}, "7:"},
		{numeric, v1.PodSecurityContext{RunAsNonRoot: yes}, v1.SecurityContext{}, "1234:"},
		{root, v1.PodSecurityContext{RunAsNonRoot: yes}, v1.SecurityContext{RunAsUser: user}, "7:"},
		{root, v1.PodSecurityContext{RunAsNonRoot: yes}, v1.SecurityContext{RunAsNonRoot: no}, "0:"},
		{root, v1.PodSecurityContext{RunAsNonRoot: yes}, v1.SecurityContext{}, "it would run as root"},
		{named, v1.PodSecurityContext{}, v1.SecurityContext{RunAsNonRoot: yes}, `user "app" has no number`},
		{numeric, v1.PodSecurityContext{RunAsUser: zero}, v1.SecurityContext{RunAsNonRoot: yes}, "it would run as root"},
	} {
		p := pod(v1.Container{Name: "c", Image: "i", SecurityContext: &c.container})
		p.Spec.SecurityContext = &c.of
		asked, err := created(t, p, c.image)
		if err != nil {
			if !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %s", err, c.want)
			}
			continue
		}
		s := asked.Config.Linux.SecurityContext
		got := s.RunAsUsername
		if s.RunAsUser != nil {
			got += strconv.FormatInt(s.RunAsUser.Value, 10)
		}
		got += ":"
		if s.RunAsGroup != nil {
			got += strconv.FormatInt(s.RunAsGroup.Value, 10)
		}
		if got != c.want {
			t.Errorf("user and group are %s, want %s", got, c.want)
		}
	}
}

// A container's seccomp profile overrides the pod's profile. If the manifest names no profile, the
// container is unconfined, as in the kubelet.
func TestSeccomp(t *testing.T) {
	standard, none := &v1.SeccompProfile{Type: v1.SeccompProfileTypeRuntimeDefault},
		&v1.SeccompProfile{Type: v1.SeccompProfileTypeUnconfined}
	for _, c := range []struct {
		of, own *v1.SeccompProfile
		want    runtimeapi.SecurityProfile_ProfileType
	}{
		{nil, nil, runtimeapi.SecurityProfile_Unconfined},
		{standard, nil, runtimeapi.SecurityProfile_RuntimeDefault},
		{none, standard, runtimeapi.SecurityProfile_RuntimeDefault},
		{standard, none, runtimeapi.SecurityProfile_Unconfined},
	} {
		p := pod(v1.Container{Name: "c", Image: "i", SecurityContext: &v1.SecurityContext{SeccompProfile: c.own}})
		p.Spec.SecurityContext.SeccompProfile = c.of
		asked, err := created(t, p, &runtimeapi.Image{})
		if err != nil {
			t.Fatal(err)
		}
		if got := asked.Config.Linux.SecurityContext.Seccomp; got == nil || got.ProfileType != c.want {
			t.Errorf("pod %v, container %v: %v, want %v", c.of, c.own, got, c.want)
		}
		if got := asked.SandboxConfig.Linux.SecurityContext.Seccomp; got.GetProfileType() !=
			runtimeapi.SecurityProfile_RuntimeDefault || got == nil {
			t.Errorf("the sandbox has %v", got)
		}
	}
}
