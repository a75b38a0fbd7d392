package cri

import (
	"google.golang.org/grpc/mem"

	// Registers gRPC's default codec, which encodes the requests.
	_ "google.golang.org/grpc/encoding/proto"
)

// answerCodec is a codec for one call. It encodes as gRPC does by default, and keeps the bytes of
// the answer instead of decoding them. The caller of take must free the bytes.
type answerCodec struct {
	requestCodec
	kept mem.BufferSlice
	used bool
}

// Unmarshal keeps data and leaves v empty.
func (c *answerCodec) Unmarshal(data mem.BufferSlice, _ any) error {
	c.kept.Free() // frees the answer to an earlier attempt
	data.Ref()
	c.kept, c.used = data, true
	return nil
}

// take returns the bytes of the answer, which the caller frees. ok is false if the client decoded
// the answer itself and did not use the codec.
func (c *answerCodec) take() (data mem.BufferSlice, ok bool) {
	data, ok = c.kept, c.used
	c.kept, c.used = nil, false
	return data, ok
}
