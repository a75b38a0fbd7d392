package criserver

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// images is the image service. Its images are the keys of WithPrograms.
type images struct {
	runtimeapi.UnimplementedImageServiceServer
	s *Server
}

// ListImages implements runtimeapi.ImageServiceServer.
func (c *images) ListImages(context.Context,
	*runtimeapi.ListImagesRequest) (*runtimeapi.ListImagesResponse, error) {
	r := &runtimeapi.ListImagesResponse{}
	for name := range c.s.cfg.programs {
		r.Images = append(r.Images, imageOf(name))
	}
	return r, nil
}

// ImageStatus implements runtimeapi.ImageServiceServer. For an image that does not exist, the
// answer is empty.
func (c *images) ImageStatus(_ context.Context,
	req *runtimeapi.ImageStatusRequest) (*runtimeapi.ImageStatusResponse, error) {
	name := req.GetImage().GetImage()
	if _, ok := c.s.cfg.programOf(name); !ok {
		return &runtimeapi.ImageStatusResponse{}, nil
	}
	return &runtimeapi.ImageStatusResponse{Image: imageOf(name)}, nil
}

// PullImage implements runtimeapi.ImageServiceServer. There is no registry, so it succeeds only for
// existing images.
func (c *images) PullImage(_ context.Context,
	req *runtimeapi.PullImageRequest) (*runtimeapi.PullImageResponse, error) {
	name := req.GetImage().GetImage()
	if _, ok := c.s.cfg.programOf(name); !ok {
		return nil, status.Errorf(codes.NotFound, "failed to pull image %q: not found", name)
	}
	return &runtimeapi.PullImageResponse{ImageRef: name}, nil
}

func imageOf(name string) *runtimeapi.Image {
	return &runtimeapi.Image{Id: name, RepoTags: []string{name}}
}
