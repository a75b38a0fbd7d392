package cri

import (
	"hash/maphash"

	"google.golang.org/protobuf/encoding/protowire"
)

// This file decides, without decoding an item of a list, whether the item is the same as
// when it was decoded.
//
// Nearly every relist finds no change, and decoding a whole list to find that out costs
// some 5 microseconds and 60 allocations per item (BenchmarkIdleRelist). Comparing the
// bytes of the whole list with those of the last one would not work: runtimes return the
// lists, and the map fields in them, in random order. So the top-level fields of each
// item are compared:
//
//   - Labels and annotations are map fields. There must be as many entries as before, and
//     their 64-bit hashes, of a random seed, must have the same sum, whatever their order.
//     So of 2^64 changes one is missed, until something else of the item changes. The time
//     is proportional to the entries, however many there are, and no second copy of them is
//     held. To find the bytes of each among those of before, for the kubelet's four labels
//     only, took as long, and a third longer beside ten more (BenchmarkIdleRelistLabels).
//   - All other fields must be present with the same bytes in the same order. This
//     includes the state, and every field that a runtime might change although the API
//     forbids it.
//
// Fields with the same bytes in the same order decode to the same values, known or
// unknown, repeated or not. So do the entries of a map in any order, if no key occurs
// twice; an item in which one does is never recognised. The result "same" is therefore
// exact but for the hashes. The result "not the same" need not be: the item is then decoded
// as a whole, which also rejects malformed bytes.

// The numbers of the map fields in a runtime.v1.PodSandbox and a
// runtime.v1.Container.
var (
	labelsNumber      = [kinds]protowire.Number{sandboxes: 5, containers: 8}
	annotationsNumber = [kinds]protowire.Number{sandboxes: 6, containers: 9}
)

// idNumber is the number of the ID in both.
const idNumber = 1

// mapSeed is the seed of the hashes of all traces.
var mapSeed = maphash.MakeSeed()

// trace is what is kept of the bytes of an item to recognise it.
type trace struct {
	// fields are the fields that are not maps, one after the other, in one string: lists
	// come in random order, and the cost of comparing is the cost of fetching.
	fields string
	maps   entries
	// usable is false if the item cannot be recognised by its bytes, usually because
	// the client decoded it and there are none.
	usable bool
}

// entries are the entries of the map fields of an item, in any order.
type entries struct {
	number int
	hash   uint64 // the sum of their hashes
}

// add adds an entry: a whole field, with its number.
func (e *entries) add(field []byte) {
	e.number++
	e.hash += maphash.Bytes(mapSeed, field)
}

// nextField returns the first field of a message, which must not be empty: its number,
// its value if it is length-delimited, else nil, and its total length, which is negative
// if the field is malformed.
func nextField(message []byte) (number protowire.Number, value []byte, length int) {
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
		default: // rare
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

// wireID returns the ID of an item if it is the first field, as in every known encoder.
func wireID(message []byte) []byte {
	if len(message) == 0 {
		return nil
	}
	if number, value, length := nextField(message); length > 0 && number == idNumber {
		return value
	}
	return nil
}

// traceOf returns the trace of an item. decoded is the number of labels and annotations
// that decoding it has given. The trace does not retain the message.
func traceOf(k kind, message []byte, decoded int) trace {
	var t trace
	var fields []byte
	for len(message) > 0 {
		number, value, length := nextField(message)
		if length < 0 {
			return trace{}
		}
		if field := message[:length]; isEntry(k, number, value) {
			t.maps.add(field)
		} else {
			fields = append(fields, field...)
		}
		message = message[length:]
	}
	t.fields = string(fields)
	t.usable = t.maps.number == decoded // else a key occurs twice, and their order counts
	return t
}

// isEntry reports whether a field is an entry of the labels or annotations.
func isEntry(k kind, number protowire.Number, value []byte) bool {
	return value != nil && (number == labelsNumber[k] || number == annotationsNumber[k])
}

// matches reports whether an item is equal to the one that the trace was taken of. It
// allocates nothing.
func (t *trace) matches(k kind, message []byte) bool {
	if !t.usable {
		return false
	}
	fields := t.fields      // what has not been matched yet
	rest, run := message, 0 // the fields in rest[:run] have not been compared yet
	var maps entries
	for at := 0; at < len(message); {
		number, value, length := nextField(message[at:])
		if length < 0 {
			return false
		}
		field := message[at : at+length]
		at += length
		if !isEntry(k, number, value) {
			run += length
			continue
		}
		// Adjacent fields are compared together.
		if !cutPrefix(&fields, rest[:run]) {
			return false
		}
		rest, run = message[at:], 0
		maps.add(field)
	}
	return cutPrefix(&fields, rest[:run]) && fields == "" && maps == t.maps
}

// cutPrefix removes a prefix from s, and reports whether s had it.
func cutPrefix(s *string, prefix []byte) bool {
	if len(*s) < len(prefix) || (*s)[:len(prefix)] != string(prefix) {
		return false
	}
	*s = (*s)[len(prefix):]
	return true
}
