package main

import (
	"time"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegz"
)

// line is the output for one event.
type line plegz.Event

// describe returns the line of an event. now is when the event was read.
func describe(e *pleg.PodLifecycleEvent, cache *pleg.PodCache, now time.Time) line {
	return line(plegz.NewEvent(e, cache, now))
}

// happenedAt returns the runtime's time of the event; zero if the runtime reports none.
func (l *line) happenedAt() time.Time { return (*plegz.Event)(l).HappenedAt() }

// shownTime returns the time in the table, which is usually when the event was read. An initial
// event or a ContainerEnded may be read much later than it happened. For such an event, the table
// contains the runtime's time, if the runtime reports one.
func (l *line) shownTime() time.Time {
	if at := l.happenedAt(); !at.IsZero() && (l.Initial || l.Event == pleg.ContainerEnded) {
		return at
	}
	return l.Time
}

// healthLine is the output for a change of the health.
type healthLine struct {
	plegz.PastCondition
	Node   string             `json:"node,omitempty"`
	Report *pleg.HealthReport `json:"report,omitempty"`
}
