package scenario

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg"
)

// reader is one blocked call of LookupNewerThan.
type reader struct {
	name   string
	uid    types.UID
	cancel context.CancelFunc
	// done is closed when the call has returned. The fields below are set before done is closed,
	// and read afterwards.
	done   chan struct{}
	at     time.Time
	status *pleg.PodStatus
	err    error
}

// block calls LookupNewerThan in a goroutine. The minTime is the present time plus the argument
// "newer"; without the argument, it is one nanosecond ago.
func block(s *scenario, c command) string {
	ctx, cancel := s.context()
	r := &reader{name: c.first(), uid: c.uid(), cancel: cancel, done: make(chan struct{})}
	minTime := s.clock.Now().Add(-1)
	if c.has("newer") {
		minTime = s.clock.Now().Add(c.duration("newer"))
	}
	s.readers = append(s.readers, r)
	s.joined.Go(func() {
		defer close(r.done)
		r.status, _, r.err = s.cache.LookupNewerThan(ctx, r.uid, minTime)
		r.at = s.clock.Now()
	})
	return ""
}

// cancel cancels the context of a reader.
func cancel(s *scenario, c command) string {
	for _, r := range s.readers {
		if r.name == c.first() {
			r.cancel()
		}
	}
	return ""
}

// printReaders prints the results of the readers that have returned, each once, and the names of
// the waiting readers.
func printReaders(s *scenario, _ command) string {
	var out strings.Builder
	var waiting []*reader
	for _, r := range s.readers {
		select {
		case <-r.done:
			r.cancel()
			fmt.Fprintf(&out, "%s at %s: ", r.name, s.since(r.at))
			if errors.Is(r.err, context.Canceled) {
				fmt.Fprintf(&out, "%v\n", s.relative(r.err.Error()))
				continue
			}
			out.WriteString(s.statusLine(r.status, r.err))
		default:
			waiting = append(waiting, r)
			fmt.Fprintf(&out, "%s waits\n", r.name)
		}
	}
	s.readers = waiting
	if out.Len() == 0 {
		return "no readers"
	}
	return out.String()
}

// relative replaces each date in an error by the time since the script began, because the dates
// differ from run to run.
func (s *scenario) relative(text string) string {
	words := strings.Split(text, " ")
	for i, w := range words {
		date := strings.TrimRight(w, ":,")
		if at, err := time.Parse(time.RFC3339Nano, date); err == nil {
			words[i] = s.since(at) + w[len(date):]
		}
	}
	return strings.Join(words, " ")
}
