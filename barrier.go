package pleg

// barrier waits until a full relist is complete: its list has landed, and every
// inspection that it called for has landed or has been set aside.
type barrier struct {
	// done gets one token when the relist is complete.
	done chan struct{}

	// Owned by the loop.

	// stamp is the stamp of the relist.
	stamp stamp
	// carried says that it has waited for a list that left a pod disputed.
	carried bool
	// left counts the pods whose inspection is still awaited.
	left int
	// then, if it is there, is called instead of giving a token.
	then func()
}

func newBarrier() any { return &barrier{done: make(chan struct{}, 1)} }

// passed notes that one pod less is awaited.
func (b *barrier) passed() {
	b.left--
	if b.left == 0 {
		b.complete()
	}
}

func (b *barrier) complete() {
	if b.then != nil {
		b.then()
		return
	}
	b.carried = false
	b.done <- struct{}{}
}
