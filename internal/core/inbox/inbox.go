// Package inbox collects inputs for a loop from other goroutines. Senders never wait for the loop.
// Inputs are merged into one value, which the loop takes as a whole. Senders must limit its size.
package inbox

import "sync"

// Inbox holds a value of type T until the loop takes it. Its methods are safe for concurrent use.
type Inbox[T any] struct {
	// wake contains a token if the content was changed.
	wake chan struct{}

	mu      sync.Mutex
	content T // guarded by mu
}

// New returns an inbox with the zero T.
func New[T any]() *Inbox[T] { return &Inbox[T]{wake: make(chan struct{}, 1)} }

// Put calls change with the content, and wakes the loop. change runs under a lock: it must return
// soon, must not keep the pointer, and must not use the inbox.
func (b *Inbox[T]) Put(change func(content *T)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change(&b.content)
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// Take returns the content and replaces it by the zero T.
func (b *Inbox[T]) Take() (content T) {
	b.mu.Lock()
	defer b.mu.Unlock()
	content, b.content = b.content, content
	return content
}

// Wake returns a channel that contains one token if the content was changed, even several times. A
// token may remain after Take; the next Take then returns the zero T.
func (b *Inbox[T]) Wake() <-chan struct{} { return b.wake }
