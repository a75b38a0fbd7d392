package main

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/kubepleg/pleg"
)

// healthPeriod is the time between two readings of the health.
const healthPeriod = time.Second

// follower reads a generator's events and prints them.
type follower struct {
	generator *pleg.GenericPLEG
	cache     *pleg.PodCache
	flags     flags
	printer   printer
	log       *slog.Logger

	began   time.Time
	events  int // printed
	others  int // not printed, because of the filter
	initial int // not printed, because they had happened before the watch began
	// The condition that was logged last.
	healthy bool
	stream  pleg.StreamState
}

func newFollower(generator *pleg.GenericPLEG, cache *pleg.PodCache, f flags, p printer, log *slog.Logger) *follower {
	return &follower{generator: generator, cache: cache, flags: f, printer: p, log: log, began: time.Now()}
}

// follow prints every event that the flags select, until ctx ends or an event cannot be written.
func (f *follower) follow(ctx context.Context) error {
	events := f.generator.Watch()
	health := time.NewTicker(healthPeriod)
	defer health.Stop()
	for {
		select {
		case e := <-events:
			if err := f.print(e); err != nil {
				return fmt.Errorf("printing an event: %w", err)
			}
		case <-health.C:
			f.noteHealth()
		case <-ctx.Done():
			return nil
		}
	}
}

// print prints an event if it is wanted.
func (f *follower) print(e *pleg.PodLifecycleEvent) error {
	if !f.flags.filter.wants(e) {
		f.others++
		return nil
	}
	l := describe(e, f.cache, time.Now(), f.began)
	if l.Initial && !f.flags.initial && !f.flags.since.wants(l.happened, f.began) {
		f.initial++
		return nil
	}
	l.Node = f.flags.nodeName
	if err := f.printer.print(l); err != nil {
		return err
	}
	f.events++
	return nil
}

// noteHealth logs the health when it has changed.
func (f *follower) noteHealth() {
	r := f.generator.HealthReport()
	if r.Healthy == f.healthy && r.Stream.State == f.stream {
		return
	}
	f.healthy, f.stream = r.Healthy, r.Stream.State
	if r.Healthy {
		f.log.Info("Healthy", conditionOf(r)...)
	} else {
		f.log.Warn("Not healthy", conditionOf(r)...)
	}
}

// summarize logs a summary in one line.
func (f *follower) summarize() {
	r := f.generator.HealthReport()
	about := []any{"events", f.events, "took", roughly(time.Since(f.began)).String(), "healthy", r.Healthy}
	if f.others > 0 {
		about = append(about, "filtered", f.others)
	}
	if f.initial > 0 {
		about = append(about, "initial", f.initial)
	}
	f.log.Info("Done", append(append(about, conditionOf(r)...), "runtime", r.Runtime)...)
}

// conditionOf returns the log's fields for a report.
func conditionOf(r pleg.HealthReport) []any {
	about := []any{"pods", r.Pods, "stream", r.Stream.State}
	if r.Stream.Error != "" && r.Stream.State != pleg.StreamConnected {
		about = append(about, "streamError", r.Stream.Error)
	}
	if !r.Healthy {
		about = append(about, "reason", r.Reason)
	}
	return about
}
