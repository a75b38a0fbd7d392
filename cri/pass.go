package cri

import (
	"fmt"

	"google.golang.org/grpc/mem"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/cri/internal/wire"
)

// These limits apply to one list, of sandboxes or of containers, over all messages of a stream. No
// node comes near these limits. A node runs some hundred pods, and a list that is not streamed must
// fit into a quarter of maxListBytes.
const (
	maxListItems     = 100_000
	maxListBytes     = 4 * maxReceivedBytes
	maxEmptyMessages = 1000
)

// These limits apply to items that are held without a pod, and to bad items that are logged.
const (
	// maxPodless is how many items without a pod are held. A held item need not be decoded again. A
	// node may run some containers that the kubelet has not made.
	maxPodless = 100
	// maxFound is how many bad items of a list are logged for each kind of bad data.
	maxFound = 5
)

// pass reads the lists of sandboxes and of containers, and compares them with the held items. These
// are the items of the last complete list.
type pass struct {
	held   *held
	number uint64
	by     reading
	// renamed is true if the runtime had another name when the held items were decoded. The name is
	// part of the listed IDs, so every item is decoded again.
	renamed bool
	sides   [kinds]side
}

// side is the list of sandboxes or of containers in a pass. Two goroutines may read the two sides
// concurrently. Each side uses its own reader and reads only held items of its own kind. In a held
// item, it writes only the field seen.
type side struct {
	known    int              // how many of the held items were listed
	fresh    map[string]*item // items that were listed, but not held
	replaced []*item          // the new items that replace changed held items

	items, bytes int // numbers of items and bytes read so far
	empty        int // number of messages without an item
	podless      int // number of items without a pod that are new, or had a pod until now

	found  []badItem // bad items for the log: new, changed or not held; see method log
	logged badTally  // counts the bad data in found
	tally  badTally  // counts the bad items that cannot be held

	skipped int // number of unchanged items
	decoded int // number of new or changed items
}

// badItem is a bad item to log.
type badItem struct {
	object object
	bad    badSet
}

// readAnswer reads an encoded answer.
func (p *pass) readAnswer(k kind, data mem.BufferSlice) error {
	if err := p.sides[k].countBytes(data.Len()); err != nil {
		return err
	}
	r := &p.held.readers[k]
	r.Reset(data)
	defer r.Release()
	for {
		message, ok, err := r.Next()
		if err != nil {
			return malformed(err)
		}
		if !ok {
			return nil
		}
		if err := p.sides[k].count(); err != nil {
			return err
		}
		if err := p.read(k, message); err != nil {
			return malformed(err)
		}
	}
}

func malformed(err error) error { return fmt.Errorf("malformed answer: %w", err) }

// count counts an item that was read. It fails if the list has too many items.
func (s *side) count() error {
	if s.items++; s.items > maxListItems {
		return fmt.Errorf("the list has more than %d items", maxListItems)
	}
	return nil
}

// countMessage counts a message after its items were read. It fails if too many messages contained
// no items.
func (s *side) countMessage(itemsBefore int) error {
	if s.items > itemsBefore {
		return nil
	}
	if s.empty++; s.empty > maxEmptyMessages {
		return fmt.Errorf("the list has more than %d messages without an item", maxEmptyMessages)
	}
	return nil
}

// countBytes counts the bytes of an answer. It fails if the list has too many bytes.
func (s *side) countBytes(n int) error {
	if s.bytes += n; s.bytes > maxListBytes {
		return fmt.Errorf("the list has more than %d MiB", maxListBytes>>20)
	}
	return nil
}

// read reads one encoded item.
func (p *pass) read(k kind, message []byte) error {
	if !p.renamed {
		known := p.held.items[k][string(wire.ID(message))]
		if known != nil && known.seen != p.number && !p.orphan(known) && known.trace.Matches(message, mapFields[k]) {
			p.see(known)
			p.sides[k].skipped++
			return nil
		}
	}
	s, entries, err := k.decode(message, p.by)
	if err != nil {
		return err
	}
	if it := p.add(k, s); it != nil {
		it.trace = wire.TraceOf(message, mapFields[k], entries)
	}
	return nil
}

// orphan reports whether a held item belongs to no pod. Such an item is decoded again, because a
// sandbox in this list may determine the item's pod.
func (p *pass) orphan(it *item) bool { return p.by.opts.byMetadata && it.podUID == "" }

// adopt assigns a container without the kubelet's label to its sandbox's pod. The sandboxes were
// read before the containers.
func (p *pass) adopt(c *shown) {
	id := c.container.PodSandboxID
	sandbox := p.sides[sandboxes].fresh[id]
	if sandbox == nil {
		sandbox = p.held.items[sandboxes][id]
	}
	if sandbox != nil {
		c.belongTo(sandbox.podUID, sandbox.podName, sandbox.podNamespace)
	}
}

// see records that a held item was listed.
func (p *pass) see(known *item) {
	known.seen = p.number
	p.sides[known.kind].known++
}

// add adds a decoded item. It returns the item that is held from now on, or nil if the decoded item
// cannot be held.
func (p *pass) add(k kind, s shown) *item {
	side := &p.sides[k]
	side.decoded++
	id := s.container.ID.ID
	if id == "" {
		side.skip(badNoID, s.object(k))
		return nil
	}
	if k == containers && p.by.opts.byMetadata {
		p.adopt(&s)
	}
	known := p.held.items[k][id]
	if known != nil && known.seen == p.number || side.fresh[id] != nil {
		side.skip(badDuplicateID, s.object(k))
		return nil
	}
	if s.podUID == "" && (known == nil || known.podUID != "") {
		if p.held.podless[k]+side.podless >= maxPodless {
			side.tally.add(s.bad, 1)
			side.log(s.bad, s.object(k))
			return nil
		}
		side.podless++
	}
	if known != nil {
		p.see(known)
		if known.shown.equal(&s) {
			return known
		}
	}
	it := &item{shown: s, kind: k, seen: p.number}
	side.log(s.bad, s.object(k))
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

// addNil counts a nil item. Only a client in this process can return a nil item.
func (p *pass) addNil(k kind) {
	p.sides[k].skip(badNilItem, object{kind: k})
}

// skip counts an item that cannot be held.
func (s *side) skip(b bad, of object) {
	s.tally[b]++
	s.log(badSet(0).with(b), of)
}

// log keeps a bad item for the log, at most maxFound items for each kind of bad data.
func (s *side) log(found badSet, of object) {
	var more badSet
	found.each(func(b bad) {
		if s.logged[b]++; s.logged[b] <= maxFound {
			more = more.with(b)
		}
	})
	if more != 0 {
		s.found = append(s.found, badItem{object: of, bad: more})
	}
}

// commit ends a pass whose lists are complete. It returns the listing, with pods sorted by UID, and
// the number of listed bad items by kind of bad data.
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
			if it.container.State == pleg.ContainerStateExited {
				it.exit = before.exit // the container has not been started again
			}
			touch(h.insertLocked(it))
		}
		for _, it := range s.fresh {
			touch(h.insertLocked(it))
		}
	}
	h.pruneStartedLocked(p.number, touch)
	h.runtimeName = p.by.runtimeName
	if len(changed) > 0 {
		h.rebuildLocked(changed)
	}
	tally := h.tally
	for k := range kinds {
		for b, n := range p.sides[k].tally {
			tally[b] += n
		}
	}
	return h.listing, tally
}
