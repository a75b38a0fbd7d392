// Package inbox collects the inputs of a loop from other goroutines. Senders never wait for
// the loop; their inputs are coalesced into one value, which the loop takes as a whole.
//
// The senders' changes have to bound the size of the content: an inbox does not know what
// it holds.
package inbox

import "sync"

// Inbox holds a content of type T until its loop takes it. Any goroutine may put
// something into it.
type Inbox[T any] struct {
	// wake has room for one token: the content was changed.
	wake chan struct{}

	mu      sync.Mutex
	content T // guarded by mu
}

// New returns an empty inbox: its content is the zero T.
func New[T any]() *Inbox[T] { return &Inbox[T]{wake: make(chan struct{}, 1)} }

// Put calls change with the content, and wakes the loop. change runs under the
// inbox's lock: it must be short, must not keep the pointer, and must not use the
// inbox.
func (b *Inbox[T]) Put(change func(content *T)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change(&b.content)
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// Take returns the content, and leaves the inbox empty.
func (b *Inbox[T]) Take() (content T) {
	b.mu.Lock()
	defer b.mu.Unlock()
	content, b.content = b.content, content
	return content
}

// Wake returns the channel of which the loop reads a token when the content has
// been changed. One token stands for any number of changes. A token may be left
// over when a Take has got what it was for: the content is empty then.
func (b *Inbox[T]) Wake() <-chan struct{} { return b.wake }
