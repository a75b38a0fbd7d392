package cri

import (
	"bytes"
	"unicode/utf8"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/kubepleg/pleg/cri/internal/wire"
	"github.com/kubepleg/pleg/internal/crimessage"
)

// Generated code rejects a whole message if one string is not UTF-8. containerd 1.7 and older do
// not check the strings that they encode, and one bad string must not hide a node or a pod. So a
// rejected message is decoded again with the bad bytes replaced. Before 0.34, cri-api uses gogo's
// code, which accepts such strings. The package then looks for bad strings after decoding.

// unmarshal decodes a message. found contains badUTF8 if invalid bytes in strings were replaced.
func unmarshal(data []byte, m crimessage.Message) (found badSet, err error) {
	err = crimessage.Unmarshal(data, m)
	if (err == nil) != crimessage.IsGogo(m) {
		return 0, err
	}
	valid, replaced := appendValid(nil, data, crimessage.Of(m).ProtoReflect().Descriptor())
	if replaced <= 0 {
		return 0, err
	}
	return badSet(0).with(badUTF8), crimessage.Unmarshal(valid, m)
}

// appendValid appends the encoded message in data to the slice to. In the message's strings, it
// replaces invalid UTF-8 with U+FFFD. replaced is the number of changed strings, or -1 if the
// message is malformed.
func appendValid(to, data []byte, of protoreflect.MessageDescriptor) (_ []byte, replaced int) {
	for len(data) > 0 {
		number, value, length := wire.Next(data)
		if length < 0 {
			return nil, -1
		}
		field := of.Fields().ByNumber(number)
		switch {
		case field == nil || value == nil:
			to = append(to, data[:length]...)
		case field.Kind() == protoreflect.StringKind && !utf8.Valid(value):
			replaced++
			to = protowire.AppendTag(to, number, protowire.BytesType)
			to = protowire.AppendBytes(to, bytes.ToValidUTF8(value, []byte(string(utf8.RuneError))))
		case field.Kind() == protoreflect.MessageKind:
			valid, n := appendValid(nil, value, field.Message())
			if n < 0 {
				return nil, -1
			}
			replaced += n
			to = protowire.AppendTag(to, number, protowire.BytesType)
			to = protowire.AppendBytes(to, valid)
		default:
			to = append(to, data[:length]...)
		}
		data = data[length:]
	}
	return to, replaced
}

// requestCodec encodes requests as gRPC does by default.
type requestCodec struct{}

// Name is empty, because gRPC appends a forced codec's name to the content type of the request.
// CRI-O closes a connection if the content type of its first call is not plain application/grpc.
func (requestCodec) Name() string { return "" }

func (requestCodec) Marshal(v any) (mem.BufferSlice, error) {
	return encoding.GetCodecV2("proto").Marshal(v)
}

// utf8Codec is a codec for one call. It decodes with unmarshal, which replaces invalid UTF-8.
type utf8Codec struct {
	requestCodec
	used  bool   // true once the codec has decoded a message
	found badSet // the bad data in the last decoded message
}

func (c *utf8Codec) Unmarshal(data mem.BufferSlice, v any) error {
	c.used, c.found = true, 0
	m, ok := v.(crimessage.Message)
	if !ok {
		return encoding.GetCodecV2("proto").Unmarshal(data, v)
	}
	buffer := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer buffer.Free()
	var err error
	c.found, err = unmarshal(buffer.ReadOnlyData(), m)
	return err
}

// statusCodec is a utf8Codec for ContainerStatus that also decodes the stop signal. Before cri-api
// 0.33, generated code does not decode it.
type statusCodec struct {
	utf8Codec
	stopSignal int32
}

func (c *statusCodec) Unmarshal(data mem.BufferSlice, v any) error {
	const statusNumber, stopSignalNumber = 1, 19
	c.stopSignal = 0
	if err := c.utf8Codec.Unmarshal(data, v); err != nil {
		return err
	}
	wire.Each(data.Materialize(), func(number int, status []byte, _ uint64) {
		if number != statusNumber {
			return
		}
		wire.Each(status, func(number int, _ []byte, n uint64) {
			if number == stopSignalNumber {
				c.stopSignal = int32(n) //nolint:gosec // as protobuf encodes it
			}
		})
	})
	return nil
}
