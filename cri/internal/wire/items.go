package wire

import (
	"errors"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// Items splits an answer, which is a message with one repeated field, into its items. The answer
// comes in buffers of some 16 KiB. Items are read in place. An item is copied only if it crosses
// the end of a buffer.
type Items struct {
	current []byte
	more    mem.BufferSlice
	left    int // the number of bytes that are left, in current and more together
	scratch []byte
}

// itemsNumber is the field number of the items in all four messages: ListPodSandboxResponse,
// ListContainersResponse, StreamPodSandboxesResponse and StreamContainersResponse.
const itemsNumber = 1

// Reset starts reading a new answer.
func (r *Items) Reset(data mem.BufferSlice) {
	r.current, r.more, r.left = nil, data, data.Len()
}

// Release drops the answer. It also drops the scratch buffer if that is larger than an ordinary
// item needs.
func (r *Items) Release() {
	const scratchKept = 64 << 10
	r.Reset(nil)
	if cap(r.scratch) > scratchKept {
		r.scratch = nil
	}
}

// Next returns the next item; ok is false after the last item. The item is valid until the next
// call, and is not longer than the answer.
func (r *Items) Next() (item []byte, ok bool, err error) {
	for r.left > 0 {
		tag, err := r.varint()
		if err != nil {
			return nil, false, err
		}
		number, typ := protowire.DecodeTag(tag)
		if number < protowire.MinValidNumber {
			return nil, false, errors.New("invalid field number")
		}
		switch typ {
		case protowire.BytesType:
			length, err := r.varint()
			if err != nil {
				return nil, false, err
			}
			if length > uint64(r.left) {
				return nil, false, ErrTruncated
			}
			value := r.take(int(length))
			if number == itemsNumber {
				return value, true, nil
			}
		case protowire.VarintType:
			if _, err := r.varint(); err != nil {
				return nil, false, err
			}
		default:
			// No known message contains such a field. protowire needs the rest in one piece.
			rest := r.take(r.left)
			n := protowire.ConsumeFieldValue(number, typ, rest)
			if n < 0 {
				return nil, false, protowire.ParseError(n)
			}
			r.current, r.left = rest[n:], len(rest)-n
			r.scratch = nil // current points into scratch
		}
	}
	return nil, false, nil
}

// varint reads a varint, which may cross the end of a buffer.
func (r *Items) varint() (uint64, error) {
	if v, n := protowire.ConsumeVarint(r.current); n > 0 {
		r.current = r.current[n:]
		r.left -= n
		return v, nil
	}
	var bytes [10]byte
	for i := range bytes {
		if r.left == 0 {
			return 0, ErrTruncated
		}
		bytes[i] = r.take(1)[0]
		if bytes[i] < 0x80 {
			v, n := protowire.ConsumeVarint(bytes[:i+1])
			if n < 0 {
				return 0, protowire.ParseError(n)
			}
			return v, nil
		}
	}
	return 0, errors.New("variable length integer overflow")
}

// take removes and returns the next n bytes. At least n bytes must be left.
func (r *Items) take(n int) []byte {
	r.left -= n
	for len(r.current) == 0 && len(r.more) > 0 {
		r.current, r.more = r.more[0].ReadOnlyData(), r.more[1:]
	}
	if n <= len(r.current) {
		taken := r.current[:n:n]
		r.current = r.current[n:]
		return taken
	}
	r.scratch = append(r.scratch[:0], r.current...)
	for missing := n - len(r.scratch); missing > 0; missing = n - len(r.scratch) {
		r.current, r.more = r.more[0].ReadOnlyData(), r.more[1:]
		part := r.current[:min(missing, len(r.current))]
		r.scratch = append(r.scratch, part...)
		r.current = r.current[len(part):]
	}
	return r.scratch
}
