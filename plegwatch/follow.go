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

// healthPeriod is the time between two checks of the generator's health.
const healthPeriod = time.Second

// follower reads a generator's events and prints them.
type follower struct {
	generator *pleg.GenericPLEG
	cache     *pleg.PodCache
	flags     flags
	printer   printer
	log       *slog.Logger

	began   time.Time
	events  int // events that were printed
	others  int // events that the filter left out
	initial int // events left out because they happened before the watch began
	// lost counts events that could not be printed; lostLogged is when that was last logged.
	lost       int
	lostLogged time.Time
	// logged is the condition that was last logged, in the form of stateOf, and loggedAt is when.
	logged   string
	loggedAt time.Time
}

func newFollower(generator *pleg.GenericPLEG, cache *pleg.PodCache, f flags, p printer, log *slog.Logger) *follower {
	return &follower{generator: generator, cache: cache, flags: f, printer: p, log: log, began: time.Now()}
}

// follow prints the events that the flags select. It returns when ctx ends or writing fails, but a
// full disk does not end it.
func (f *follower) follow(ctx context.Context) error {
	events := f.generator.Watch()
	health := time.NewTicker(healthPeriod)
	defer health.Stop()
	for {
		select {
		case e := <-events:
			err := f.print(e)
			switch {
			case errors.Is(err, syscall.ENOSPC): // the disk is full: continue for page and metrics
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

// print prints an event if the flags select it.
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

// noteHealth logs the health each time its level changes. If something else about the health
// changes, it logs at most every ten seconds.
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

// stateOf returns the level and the problem of a condition, without the numbers that change with
// time.
func stateOf(c plegz.Condition) string {
	if c.Level == plegz.LevelOK {
		return string(c.Level)
	}
	return string(c.Level) + " " + withTime.ReplaceAllString(c.Sentence, "")
}

// summarize logs a one-line summary of the watch.
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

// conditionOf returns log fields for a health report: pods, stream and the stream's error.
func conditionOf(r pleg.HealthReport) []any {
	about := []any{"pods", r.Pods, "stream", r.Stream.State}
	if r.Stream.Error != "" && r.Stream.State != pleg.StreamConnected {
		about = append(about, "streamError", r.Stream.Error)
	}
	return about
}
