package cri

import (
	"google.golang.org/grpc/mem"

	"github.com/kubepleg/pleg"
)

// pass is one list, of sandboxes and of containers, being compared with what is held.
type pass struct {
	held        *held
	number      uint64
	runtimeName string
	// renamed is set if the runtime had another name when the items were decoded that
	// are held. Their names are part of the IDs in the listing, so all are decoded.
	renamed bool
	sides   [kinds]side
}

// side is one of the two lists of a pass. Two goroutines may read the two sides at
// once: a side has its own reader, and of what is held it reads the items of its
// kind only, and writes no more than item.seen of those.
type side struct {
	known    int              // how many of the held items were listed
	fresh    map[string]*item // listed, but not held
	replaced []*item          // held, but listed with other facts

	// found are the bad items that were not held before, and those that never are;
	// tally counts the latter.
	found []badItem
	tally badTally
	// skipped and decoded count the items by what was done with them.
	skipped, decoded int
}

// badItem is something that is to be logged.
type badItem struct {
	kind kind
	id   string
	bad  badSet
}

// readAnswer reads an answer as it came.
func (p *pass) readAnswer(k kind, data mem.BufferSlice) error {
	const scratchKept = 64 << 10
	r := &p.held.readers[k]
	r.reset(data)
	defer func() {
		r.reset(nil)
		if cap(r.scratch) > scratchKept {
			r.scratch = nil
		}
	}()
	for {
		message, ok, err := r.next()
		if err != nil || !ok {
			return err
		}
		if err := p.read(k, message); err != nil {
			return err
		}
	}
}

// read reads one item as it came.
func (p *pass) read(k kind, message []byte) error {
	if !p.renamed {
		known := p.held.items[k][string(wireID(message))]
		if known != nil && known.seen != p.number && known.trace.matches(k, message) {
			p.see(known)
			p.sides[k].skipped++
			return nil
		}
	}
	s, err := k.decode(message, p.runtimeName)
	if err != nil {
		return err
	}
	if it := p.add(k, s); it != nil {
		it.trace = traceOf(k, message)
	}
	return nil
}

// see notes that an item that is held was listed.
func (p *pass) see(known *item) {
	known.seen = p.number
	p.sides[known.kind].known++
}

// add adds an item that was decoded. It returns the item that is held from now on,
// and nil if it is skipped.
func (p *pass) add(k kind, s shown) *item {
	side := &p.sides[k]
	side.decoded++
	id := s.container.ID.ID
	if id == "" {
		p.skip(k, badNoID, "")
		return nil
	}
	known := p.held.items[k][id]
	if known != nil && known.seen == p.number || side.fresh[id] != nil {
		p.skip(k, badDuplicateID, id)
		return nil
	}
	if known != nil {
		p.see(known)
		if known.shown.equal(&s) {
			return known
		}
	}
	it := &item{shown: s, kind: k, seen: p.number}
	if s.bad != 0 {
		side.found = append(side.found, badItem{kind: k, id: id, bad: s.bad})
	}
	if known != nil {
		side.replaced = append(side.replaced, it)
		return it
	}
	if side.fresh == nil {
		side.fresh = map[string]*item{}
	}
	side.fresh[id] = it
	return it
}

// addNil counts an item that is nil, which only a client in this process can
// return.
func (p *pass) addNil(k kind) {
	p.skip(k, badNilItem, "")
}

// skip leaves an item out that cannot be held.
func (p *pass) skip(k kind, b bad, id string) {
	side := &p.sides[k]
	side.tally[b]++
	side.found = append(side.found, badItem{kind: k, id: id, bad: badSet(0).with(b)})
}

// commit ends a pass whose lists are complete. It returns the listing, pods sorted
// by UID, and how many bad items of each kind were listed.
func (p *pass) commit() ([]*pleg.Pod, badTally) {
	h := p.held
	h.mu.Lock()
	defer h.mu.Unlock()

	changed := map[*heldPod]bool(nil)
	touch := func(pod *heldPod) {
		if pod == nil {
			return
		}
		if changed == nil {
			changed = map[*heldPod]bool{}
		}
		changed[pod] = true
	}
	for k := range kinds {
		s := &p.sides[k]
		if s.known != len(h.items[k]) {
			for _, it := range h.items[k] {
				if it.seen != p.number {
					touch(h.removeLocked(it))
				}
			}
		}
		for _, it := range s.replaced {
			before := h.items[k][it.container.ID.ID]
			touch(h.removeLocked(before))
			it.exit = before.exit
			touch(h.insertLocked(it))
		}
		for _, it := range s.fresh {
			touch(h.insertLocked(it))
		}
	}
	h.runtimeName = p.runtimeName
	if len(changed) > 0 {
		h.remakeLocked(changed)
	}
	tally := h.tally
	for _, s := range p.sides {
		for b, n := range s.tally {
			tally[b] += n
		}
	}
	return h.listing, tally
}
