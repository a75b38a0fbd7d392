package cri

import (
	"google.golang.org/protobuf/encoding/protowire"
)

// This file tells, without decoding it, whether an item of a list is as it was when
// it was decoded.
//
// A relist that finds nothing new is what nearly all of them are, and decoding a
// whole list to find that out costs some 5 microseconds and 60 allocations for each
// item (BenchmarkIdleRelist). Comparing its bytes with those of the last list as a
// whole would not do: both lists and the map fields in them come in random order.
// So an item's bytes are taken apart, at the top only:
//
//   - Annotations are skipped. They are most of the bytes, and one of them, the hash
//     of the container's specification, is in a listing; but "Annotations MUST NOT be
//     altered by the runtime; the value of this field MUST be identical to that of
//     the corresponding ContainerConfig used to instantiate this Container", says the
//     API, and the same of sandboxes.
//   - Labels are a map field too, and the API makes no such promise of them. Those
//     that are read must all be there as they were, with the same bytes, and none of
//     them with other bytes beside; others are skipped, for nothing in a listing is
//     made of them.
//   - All other fields must be there with the same bytes in the same order. The
//     state is one of them, and what else may change according to the API, or might
//     on some runtime although it should not: nothing rests on a guess.
//
// Fields with the same bytes in the same order decode to the same values, known or
// not, repeated or not. So the answer "the same" is exact. The answer "not the same"
// need not be: then the item is decoded whole, which also is what tells malformed
// bytes from good ones.

// The numbers of the map fields in a runtime.v1.PodSandbox and a
// runtime.v1.Container.
var (
	labelsNumber      = [kinds]protowire.Number{sandboxes: 5, containers: 8}
	annotationsNumber = [kinds]protowire.Number{sandboxes: 6, containers: 9}
)

// idNumber is the number of the ID in both.
const idNumber = 1

// labelsRead is how many keys of labels are read.
const labelsRead = 4

// trace is what is kept of the bytes of an item to know it again.
type trace struct {
	// bytes are the fields that are no maps, one after the other, and then the
	// entries of the labels that are read. They are one string so that they lie
	// together: in lists that come in random order, what comparing them costs is
	// fetching them.
	bytes string
	// fixed is where the labels begin in bytes, and ends is where each of them ends.
	fixed  int32
	ends   [labelsRead]int32
	labels int // how many there are
	// usable is not set if the item cannot be known again by its bytes: most often
	// because the client decoded it, and there were none.
	usable bool
}

// nextField returns the first field of a message, which must not be empty: its
// number, its value if it is length-delimited, else nil, and its length in all,
// negative if it is malformed.
func nextField(message []byte) (number protowire.Number, value []byte, length int) {
	// Nearly every field has a number below 16 and a length below 128, one byte
	// each. This takes a third off the cost of a list.
	if len(message) >= 2 && 1<<3 <= message[0] && message[0] < 0x80 && message[1] < 0x80 {
		number, second := protowire.Number(message[0]>>3), int(message[1])
		switch protowire.Type(message[0] & 7) {
		case protowire.BytesType:
			if 2+second <= len(message) {
				return number, message[2 : 2+second], 2 + second
			}
		case protowire.VarintType:
			return number, nil, 2
		default: // rare enough for the long way
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

// wireID returns the ID of an item, if it comes first, where everybody puts it.
func wireID(message []byte) []byte {
	if len(message) == 0 {
		return nil
	}
	if number, value, length := nextField(message); length > 0 && number == idNumber {
		return value
	}
	return nil
}

// traceOf takes the trace of an item that has been decoded. It keeps nothing of the
// message.
func traceOf(k kind, message []byte) trace {
	var fixed []byte
	var labels [labelsRead][]byte // in the order of the keys that are read
	for len(message) > 0 {
		number, value, length := nextField(message)
		if length < 0 {
			return trace{}
		}
		switch {
		case value != nil && number == annotationsNumber[k]:
		case value != nil && number == labelsNumber[k]:
			switch key := readLabel(value); {
			case key == labelOther:
			case key == labelUnclear:
				return trace{}
			default:
				labels[key] = value // of several the last counts
			}
		default:
			fixed = append(fixed, message[:length]...)
		}
		message = message[length:]
	}
	t := trace{usable: true, fixed: int32(len(fixed))}
	for _, l := range labels {
		if l != nil {
			fixed = append(fixed, l...)
			t.ends[t.labels] = int32(len(fixed))
			t.labels++
		}
	}
	t.bytes = string(fixed)
	return t
}

// matches tells whether an item is the one that the trace was taken of, as far as a
// listing shows. It allocates nothing.
func (t *trace) matches(k kind, message []byte) bool {
	if !t.usable {
		return false
	}
	fixed := t.bytes[:t.fixed] // what has not been seen yet
	rest, run := message, 0    // the fields up to rest[:run] have not been compared
	seen := 0                  // a bit for each of the labels
	labels, annotations := labelsNumber[k], annotationsNumber[k]
	for at := 0; at < len(message); {
		number, value, length := nextField(message[at:])
		if length < 0 {
			return false
		}
		at += length
		isLabel := value != nil && number == labels
		if !isLabel && (value == nil || number != annotations) {
			run += length
			continue
		}
		// Fields in a row are compared at once.
		if !cutPrefix(&fixed, rest[:run]) {
			return false
		}
		rest, run = message[at:], 0
		if isLabel {
			if i := t.label(value); i >= 0 {
				seen |= 1 << i
			} else if readLabel(value) != labelOther {
				return false
			}
		}
	}
	return cutPrefix(&fixed, rest[:run]) && fixed == "" && seen == 1<<t.labels-1
}

// label returns which of the trace's labels an entry is, or -1.
func (t *trace) label(entry []byte) int {
	start := t.fixed
	for i, end := range t.ends[:t.labels] {
		if t.bytes[start:end] == string(entry) {
			return i
		}
		start = end
	}
	return -1
}

// cutPrefix cuts a prefix off s, and tells whether it was one.
func cutPrefix(s *string, prefix []byte) bool {
	if len(*s) < len(prefix) || (*s)[:len(prefix)] != string(prefix) {
		return false
	}
	*s = (*s)[len(prefix):]
	return true
}

// What the key of a label is to a listing: one of those that are read, by their
// place in a trace, another, or not to be made out.
const (
	labelOther   = -1
	labelUnclear = -2
)

// readLabel tells which label an entry of the labels is.
func readLabel(entry []byte) int {
	var key []byte
	for len(entry) > 0 {
		number, value, length := nextField(entry)
		if length < 0 {
			return labelUnclear
		}
		if number == 1 && value != nil {
			key = value
		}
		entry = entry[length:]
	}
	switch string(key) {
	case labelPodUID:
		return 0
	case labelPodName:
		return 1
	case labelPodNamespace:
		return 2
	case labelContainerName:
		return 3
	}
	return labelOther
}
