package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegz"
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
	// How many events could not be printed, and when that was logged last.
	lost       int
	lostLogged time.Time
	// The condition that was logged last, as logged returns it, and when.
	logged   string
	loggedAt time.Time
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
			err := f.print(e)
			switch {
			case errors.Is(err, syscall.ENOSPC): // the page and the metrics are needed then
				f.noteLost(err)
			case err != nil:
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

// noteLost counts an event that could not be printed, and logs the error at most once a minute.
func (f *follower) noteLost(err error) {
	f.lost++
	if time.Since(f.lostLogged) > time.Minute {
		f.lostLogged = time.Now()
		f.log.Error("Events are not printed", "error", err, "events", f.lost)
	}
}

// noteHealth logs the health at each change of its level, and at most every ten seconds if something else is wrong.
func (f *follower) noteHealth() {
	c := plegz.NewCondition(f.generator)
	now, state := time.Now(), stateOf(c)
	sameLevel := strings.HasPrefix(f.logged, string(c.Level))
	if state == f.logged || sameLevel && now.Sub(f.loggedAt) < 10*time.Second {
		return
	}
	f.logged, f.loggedAt = state, now
	about := conditionOf(f.generator.HealthReport())
	if len(c.Notes) > 0 {
		about = append(about, "notes", strings.Join(c.Notes, " "))
	}
	level := map[plegz.Level]slog.Level{plegz.LevelWarning: slog.LevelWarn, plegz.LevelError: slog.LevelError}[c.Level]
	f.log.Log(context.Background(), level, c.Sentence, about...)
}

var withTime = regexp.MustCompile(`\(for [^)]*\)|\d+ (other )?pods? (has|have) been inspected|[0-9.]+`)

// stateOf returns the level of a condition and what is wrong, without what changes with time.
func stateOf(c plegz.Condition) string {
	if c.Level == plegz.LevelOK {
		return string(c.Level)
	}
	return string(c.Level) + " " + withTime.ReplaceAllString(c.Sentence, "")
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
	if f.lost > 0 {
		about = append(about, "notPrinted", f.lost)
	}
	f.log.Info("Done", append(append(about, conditionOf(r)...), "runtime", r.Runtime)...)
}

// conditionOf returns the log's fields for a report.
func conditionOf(r pleg.HealthReport) []any {
	about := []any{"pods", r.Pods, "stream", r.Stream.State}
	if r.Stream.Error != "" && r.Stream.State != pleg.StreamConnected {
		about = append(about, "streamError", r.Stream.Error)
	}
	return about
}
