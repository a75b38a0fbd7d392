package criserver

import (
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
)

// rawMessage is a message in its encoded form. It need not be a valid protobuf message.
type rawMessage []byte

// rawCodec is gRPC's protobuf codec, except that it sends and receives a rawMessage unchanged.
type rawCodec struct {
	encoding.CodecV2
}

func newRawCodec() rawCodec {
	return rawCodec{encoding.GetCodecV2(proto.Name)}
}

func (c rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	if raw, ok := v.(rawMessage); ok {
		return mem.BufferSlice{mem.SliceBuffer(raw)}, nil
	}
	return c.CodecV2.Marshal(v)
}

func (c rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	if raw, ok := v.(*rawMessage); ok {
		*raw = data.Materialize()
		return nil
	}
	return c.CodecV2.Unmarshal(data, v)
}
