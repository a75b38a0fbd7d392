package scenario

import (
	"errors"
	"fmt"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

// emit sends an event of the runtime, even if it is late, repeated or invented.
func emit(s *scenario, c command) string {
	for range c.number("times", 1) {
		s.runtime.Emit(pleg.ContainerEvent{PodUID: c.uid(), ContainerID: c.str("id"), CreatedAt: s.clock.Now()})
	}
	return ""
}

// stream sets how the event stream behaves from now on. Without an argument, it prints the state of
// the stream as the generator reports it.
func stream(s *scenario, c command) string {
	if len(c.args) == 0 {
		r := s.g.HealthReport().Stream
		if r.Error == "" {
			return string(r.State)
		}
		return fmt.Sprintf("%s; the last one: %s", r.State, r.Error)
	}
	switch what := c.first(); what {
	case "silent":
		s.runtime.EmitOnChange(false)
	case "talking":
		s.runtime.EmitOnChange(true)
	case "break":
		var err error
		if c.has("error") {
			err = errors.New(c.str("error"))
		}
		s.runtime.BreakEventStreams(err)
	case "served":
		s.runtime.SetEventMode(plegtest.EventsServed)
	case "unsupported":
		s.runtime.SetEventMode(plegtest.EventsUnsupported)
	case "ends":
		s.runtime.SetEventMode(plegtest.EventsEndAtOnce)
	default:
		c.fatalf("a stream cannot be %q", what)
	}
	return ""
}
