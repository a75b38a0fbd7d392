package criserver

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// images serves the images for which the server has programs.
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

// ImageStatus implements runtimeapi.ImageServiceServer. The answer for a missing image is empty.
func (c *images) ImageStatus(_ context.Context,
	req *runtimeapi.ImageStatusRequest) (*runtimeapi.ImageStatusResponse, error) {
	name := req.GetImage().GetImage()
	if _, ok := c.s.cfg.programOf(name); !ok {
		return &runtimeapi.ImageStatusResponse{}, nil
	}
	return &runtimeapi.ImageStatusResponse{Image: imageOf(name)}, nil
}

// PullImage implements runtimeapi.ImageServiceServer. There is no registry: it succeeds for the
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
