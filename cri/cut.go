package cri

import (
	"strings"

	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// maxText is how many bytes of a text from the runtime may appear in errors, and thus in logs and
// reports. gRPC passes on texts of several MiB.
const maxText = 4 << 10

// cutText returns at most the first maxText bytes of a text.
func cutText(s string) string {
	if len(s) <= maxText {
		return s
	}
	const more = "…"
	return strings.ToValidUTF8(s[:maxText-len(more)], "") + more
}

// cutMessage shortens a container's message, but keeps the 4,096 bytes that the kubelet keeps. A
// message may be long: containerd's StartError contains the tenant's command.
func cutMessage(s string) string {
	if len(s) <= maxText {
		return s
	}
	return strings.ToValidUTF8(s[:maxText], "") + "…"
}

// cutError replaces an error whose text was too long. It does not keep the long text in memory.
type cutError struct {
	text   string
	causes []error
}

func (e *cutError) Error() string   { return e.text }
func (e *cutError) Unwrap() []error { return e.causes }

// cut returns err if its text is short. Otherwise it returns an error with the beginning of the
// text. This error wraps the innermost errors and the gRPC statuses of err.
func cut(err error) error {
	long := len(err.Error()) > maxText
	var causes []error
	var collect func(error)
	collect = func(err error) {
		if s, ok := err.(interface{ GRPCStatus() *status.Status }); ok {
			if is := s.GRPCStatus(); proto.Size(is.Proto()) > maxText {
				long = true // the details may be long
				err = status.Error(is.Code(), cutText(is.Message()))
			}
			causes = append(causes, err)
			return
		}
		switch w := err.(type) { //nolint:errorlint // the tree is walked here
		case interface{ Unwrap() error }:
			if next := w.Unwrap(); next != nil {
				collect(next)
				return
			}
		case interface{ Unwrap() []error }:
			for _, next := range w.Unwrap() {
				if next != nil {
					collect(next)
				}
			}
			return
		}
		causes = append(causes, err)
	}
	collect(err)
	if !long {
		return err
	}
	return &cutError{text: strings.Clone(cutText(err.Error())), causes: causes}
}
