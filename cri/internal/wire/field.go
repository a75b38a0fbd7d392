// Package wire reads encoded messages without decoding them. It finds their fields and the items of
// a list, and whether an item has changed since it was decoded. Its only assumption about CRI is
// that items and their IDs are fields with number 1.
package wire

import (
	"errors"

	"google.golang.org/protobuf/encoding/protowire"
)

// ErrTruncated is returned if a message ends too early.
var ErrTruncated = errors.New("the message ends in the middle of a field")

// Next returns the first field of message, which must not be empty: the field's number, value and
// total length. The value is nil if the field is not length-delimited. If the field is malformed,
// the length is negative.
func Next(message []byte) (number protowire.Number, value []byte, length int) {
	// Nearly every field has a number below 16 and a length below 128, one byte each.
	// This fast path saves a third of the cost of a list.
	if len(message) >= 2 && 1<<3 <= message[0] && message[0] < 0x80 && message[1] < 0x80 {
		number, second := protowire.Number(message[0]>>3), int(message[1])
		switch protowire.Type(message[0] & 7) {
		case protowire.BytesType:
			if 2+second <= len(message) {
				return number, message[2 : 2+second], 2 + second
			}
		case protowire.VarintType:
			return number, nil, 2
		default: // other types are rare
		}
	}
	number, typ, tagLength := protowire.ConsumeTag(message)
	if tagLength < 0 {
		return 0, nil, tagLength
	}
	message = message[tagLength:]
	if typ == protowire.BytesType {
		value, length = protowire.ConsumeBytes(message)
	} else {
		length = protowire.ConsumeFieldValue(number, typ, message)
	}
	if length < 0 {
		return 0, nil, length
	}
	return number, value, tagLength + length
}

// idNumber is the field number of the ID in a runtime.v1.PodSandbox and a runtime.v1.Container.
const idNumber = 1

// ID returns the ID of an item, or nil if the ID is not the first field. Every known encoder writes
// the ID first.
func ID(message []byte) []byte {
	if len(message) == 0 {
		return nil
	}
	if number, value, length := Next(message); length > 0 && number == idNumber {
		return value
	}
	return nil
}

// Each calls f with each field of a message: its number and its value, which is bytes
// or a varint. For a field of another type, value is nil and n is 0. Each returns false if the
// message is malformed.
func Each(message []byte, f func(number int, value []byte, n uint64)) bool {
	for len(message) > 0 {
		number, value, length := Next(message)
		if length < 0 {
			return false
		}
		var n uint64
		if _, typ, tag := protowire.ConsumeTag(message); typ == protowire.VarintType {
			n, _ = protowire.ConsumeVarint(message[tag:])
		}
		f(int(number), value, n)
		message = message[length:]
	}
	return true
}
