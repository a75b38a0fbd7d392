package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/internal/printable"
)

// healthPeriod is how often the health is looked at.
const healthPeriod = time.Second

// follower reads a generator's events and prints them.
type follower struct {
	generator *pleg.GenericPLEG
	cache     *pleg.PodCache
	filter    filter
	printer   printer
	notes     io.Writer

	began  time.Time
	events int // printed
	others int // not printed, because of the filter
	pods   map[types.UID]struct{}
	// The condition that was told last.
	healthy bool
	stream  pleg.StreamState
}

func newFollower(generator *pleg.GenericPLEG, cache *pleg.PodCache, wanted filter, p printer,
	notes io.Writer) *follower {
	return &follower{
		generator: generator, cache: cache, filter: wanted, printer: p, notes: notes,
		began: time.Now(), pods: make(map[types.UID]struct{}),
	}
}

// follow prints every event that the filter wants until ctx ends or what is printed cannot be written.
func (f *follower) follow(ctx context.Context) error {
	events := f.generator.Watch()
	health := time.NewTicker(healthPeriod)
	defer health.Stop()
	for {
		select {
		case e := <-events:
			if !f.filter.wants(e) {
				f.others++
				continue
			}
			if err := f.printer.print(describe(e, f.cache, time.Now(), f.began)); err != nil {
				return fmt.Errorf("printing an event: %w", err)
			}
			f.events++
			f.pods[e.ID] = struct{}{}
		case <-health.C:
			f.noteHealth()
		case <-ctx.Done():
			return nil
		}
	}
}

// noteHealth tells of the health when it has changed.
func (f *follower) noteHealth() {
	r := f.generator.HealthReport()
	if r.Healthy == f.healthy && r.Stream.State == f.stream {
		return
	}
	f.healthy, f.stream = r.Healthy, r.Stream.State
	fmt.Fprintf(f.notes, "%s  %s; %s\n", time.Now().Format(timeLayout), healthText(r), streamText(r.Stream))
}

// summarize tells in one line what there was.
func (f *follower) summarize() {
	r := f.generator.HealthReport()
	others := ""
	if f.others > 0 {
		others = fmt.Sprintf("; %d others not shown", f.others)
	}
	fmt.Fprintf(f.notes, "%d events of %d pods in %v%s; %s; %s; %s.\n", f.events, len(f.pods),
		roughly(time.Since(f.began)), others, healthText(r), streamText(r.Stream), printable.Text(r.Runtime))
}

func healthText(r pleg.HealthReport) string {
	if r.Healthy {
		return "healthy"
	}
	return "not healthy: " + printable.Text(r.Reason)
}

func streamText(s pleg.StreamReport) string {
	text := "event stream " + string(s.State)
	if s.Error != "" && s.State != pleg.StreamConnected {
		text += ": " + printable.Text(s.Error)
	}
	return text
}
