package wire

import (
	"hash/maphash"

	"google.golang.org/protobuf/encoding/protowire"
)

// This file decides whether an item of a list is the same as when it was decoded, without decoding
// the item again.
//
// Nearly every relist finds no change. Decoding a whole list to find that out costs some 5
// microseconds and 60 allocations per item (BenchmarkIdleRelist). Comparing the bytes of the whole
// list with those of the last list would not work: runtimes return the lists, and the map fields of
// the items, in random order. So the top-level fields of each item are compared:
//
//   - Labels and annotations are map fields. Their number must be unchanged, and so must the sum of
//     their 64-bit hashes with a random seed, whatever their order. One change in 2^64 is missed
//     until something else in the item changes. The time is proportional to the number of entries,
//     and no second copy of the entries is stored. Searching the previous
//     bytes for each entry takes as long with the kubelet's four labels, and a third longer with ten
//     more labels (BenchmarkIdleRelistLabels).
//   - All other fields must be present with the same bytes in the same order. This includes the
//     state, and every field that a runtime might change although the API forbids it.
//
// Fields with the same bytes in the same order decode to the same values, known or unknown,
// repeated or not. If no key occurs twice, the entries of a map decode to the same values in any
// order. An item with a repeated key is never recognised. The result "same" is therefore exact
// except for the hashes. The result "not the same" may be wrong: the item is then decoded as a
// whole, which also rejects malformed bytes.

// Maps contains the field numbers of an item's map fields.
type Maps [2]protowire.Number

// entry reports whether a field is an entry of a map.
func (m Maps) entry(number protowire.Number, value []byte) bool {
	return value != nil && (number == m[0] || number == m[1])
}

// mapSeed is the seed of the hashes of all traces.
var mapSeed = maphash.MakeSeed()

// Trace contains what is needed to recognise an unchanged item by its bytes.
type Trace struct {
	// fields contains all fields that are not map entries. They are in one string because most of
	// the cost of comparing is fetching memory: lists come in random order.
	fields string
	maps   entries
	// usable is false if the bytes cannot show that the item is unchanged. The usual reason is a
	// client that decodes items itself and does not keep the bytes.
	usable bool
}

// entries describes the map entries of an item, without their order.
type entries struct {
	number int
	hash   uint64 // the sum of the hashes of the entries
}

// add adds an entry. field is the whole encoded field, including its number.
func (e *entries) add(field []byte) {
	e.number++
	e.hash += maphash.Bytes(mapSeed, field)
}

// TraceOf returns the trace of an item. decoded is the number of map entries in the decoded item.
// The trace does not retain the message.
func TraceOf(message []byte, maps Maps, decoded int) Trace {
	var t Trace
	var fields []byte
	for len(message) > 0 {
		number, value, length := Next(message)
		if length < 0 {
			return Trace{}
		}
		if field := message[:length]; maps.entry(number, value) {
			t.maps.add(field)
		} else {
			fields = append(fields, field...)
		}
		message = message[length:]
	}
	t.fields = string(fields)
	t.usable = t.maps.number == decoded // false if a key occurs twice, because order then matters
	return t
}

// Matches reports whether an item equals the item of the trace. It allocates nothing.
func (t *Trace) Matches(message []byte, maps Maps) bool {
	if !t.usable {
		return false
	}
	fields := t.fields      // the part that has not been matched yet
	rest, run := message, 0 // the fields in rest[:run] have not been compared yet
	var found entries
	for at := 0; at < len(message); {
		number, value, length := Next(message[at:])
		if length < 0 {
			return false
		}
		field := message[at : at+length]
		at += length
		if !maps.entry(number, value) {
			run += length
			continue
		}
		// Adjacent fields are compared together.
		if !cutPrefix(&fields, rest[:run]) {
			return false
		}
		rest, run = message[at:], 0
		found.add(field)
	}
	return cutPrefix(&fields, rest[:run]) && fields == "" && found == t.maps
}

// cutPrefix removes a prefix from s, and reports whether s began with it.
func cutPrefix(s *string, prefix []byte) bool {
	if len(*s) < len(prefix) || (*s)[:len(prefix)] != string(prefix) {
		return false
	}
	*s = (*s)[len(prefix):]
	return true
}
