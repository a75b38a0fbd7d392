package schedule

// request is what somebody wants a list for, of one pod or of all: the requests that are
// open are one.
type request struct {
	// newest is the number from which on a list answers the newest of them, oldest that of
	// the oldest; 0 for none.
	newest, oldest uint64
	cause          string // of the oldest
	hinted         bool   // an event is among them
}

// add opens one. A list that begins after the one numbered last answers it. Only a request that is
// older than those that are open (RequestOf) comes with a smaller number than theirs.
func (r *request) add(last uint64, cause string, hinted bool) {
	if r.newest == 0 || r.oldest > last+1 {
		r.cause, r.oldest = cause, last+1
	}
	r.newest = max(r.newest, last+1)
	r.hinted = r.hinted || hinted
}

// answer notes that the list of a number answers those from before it, and reports whether
// it answers one, and whether it was the last and an event was among them.
func (r *request) answer(number uint64) (answered, hinted bool) {
	switch {
	case r.newest == 0 || r.oldest > number:
		return false, false
	case r.newest > number:
		r.oldest = r.newest
		return true, false
	}
	hinted = r.hinted
	*r = request{}
	return true, hinted
}
