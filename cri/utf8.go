package cri

import (
	"bytes"
	"unicode/utf8"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Generated code rejects a whole message for one string that is not UTF-8. containerd 1.7
// and older, which do not check what they encode, can send one, and it must not hide a node
// or a pod. So a message that is rejected is decoded once more with such strings replaced.

// unmarshal decodes a message. found says whether strings had to be replaced.
func unmarshal(message []byte, m proto.Message) (found badSet, err error) {
	err = proto.Unmarshal(message, m)
	if err == nil {
		return 0, nil
	}
	valid, ok := appendValid(nil, message, m.ProtoReflect().Descriptor())
	if !ok {
		return 0, err
	}
	return badSet(0).with(badUTF8), proto.Unmarshal(valid, m)
}

// appendValid appends an encoded message with U+FFFD in place of what is not UTF-8 in its
// strings. ok is false if the message is malformed.
func appendValid(to, message []byte, of protoreflect.MessageDescriptor) (_ []byte, ok bool) {
	for len(message) > 0 {
		number, value, length := nextField(message)
		if length < 0 {
			return nil, false
		}
		field := of.Fields().ByNumber(number)
		switch {
		case field == nil || value == nil:
			to = append(to, message[:length]...)
		case field.Kind() == protoreflect.StringKind && !utf8.Valid(value):
			to = protowire.AppendTag(to, number, protowire.BytesType)
			to = protowire.AppendBytes(to, bytes.ToValidUTF8(value, []byte(string(utf8.RuneError))))
		case field.Kind() == protoreflect.MessageKind:
			valid, ok := appendValid(nil, value, field.Message())
			if !ok {
				return nil, false
			}
			to = protowire.AppendTag(to, number, protowire.BytesType)
			to = protowire.AppendBytes(to, valid)
		default:
			to = append(to, message[:length]...)
		}
		message = message[length:]
	}
	return to, true
}

// requestCodec encodes requests as gRPC does by default.
type requestCodec struct{}

// Name is empty, because gRPC appends the name of a forced codec to the content-type of
// the request, and CRI-O closes a connection whose first call is not plain application/grpc.
func (requestCodec) Name() string { return "" }

func (requestCodec) Marshal(v any) (mem.BufferSlice, error) {
	return encoding.GetCodecV2("proto").Marshal(v)
}

// utf8Codec is a codec for one call, which decodes with unmarshal.
type utf8Codec struct {
	requestCodec
	found badSet // in the message that was decoded last
}

func (c *utf8Codec) Unmarshal(data mem.BufferSlice, v any) error {
	c.found = 0
	err := encoding.GetCodecV2("proto").Unmarshal(data, v)
	if m, ok := v.(proto.Message); ok && err != nil {
		c.found, err = unmarshal(data.Materialize(), m)
	}
	return err
}
