// Package crimessage handles CRI's messages alike, whatever generated them. cri-api's before 0.34
// are gogo's, and do not implement proto.Message.
package crimessage

import (
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"
)

// Message is the interface of every generated message.
type Message = protoadapt.MessageV1

// Of returns a message as a proto.Message; nil for any other value.
func Of(v any) proto.Message {
	m, ok := v.(Message)
	if !ok {
		return nil
	}
	return protoadapt.MessageV2Of(m)
}

// IsGogo reports whether gogo's code encodes and decodes the message. That code accepts strings
// that are not UTF-8, and drops unknown fields.
func IsGogo(m Message) bool {
	_, is := m.(proto.Message)
	return !is
}

// Clone returns a deep copy.
func Clone[M Message](m M) M {
	return protoadapt.MessageV1Of(proto.Clone(protoadapt.MessageV2Of(m))).(M)
}

// Marshal encodes a message.
func Marshal(v any) ([]byte, error) {
	m := Of(v)
	if m == nil {
		return nil, fmt.Errorf("cannot encode a %T", v)
	}
	return proto.Marshal(m)
}

// Unmarshal decodes a message.
func Unmarshal(data []byte, m Message) error { return proto.Unmarshal(data, protoadapt.MessageV2Of(m)) }

// Equal reports whether two messages are equal.
func Equal(a, b Message) bool {
	return proto.Equal(protoadapt.MessageV2Of(a), protoadapt.MessageV2Of(b))
}
