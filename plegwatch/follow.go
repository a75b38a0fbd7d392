package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
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
	history   *history
	log       *slog.Logger

	began   time.Time
	events  int // printed
	others  int // not printed because of the filter
	initial int // not printed, because they had happened before the watch began
	// lost is the number of events that could not be printed or added to the history. lostLogged is
	// when that was last logged.
	lost       int
	lostLogged time.Time
	// logged is the last logged condition, and loggedAt is when it was logged.
	logged   plegz.Condition
	loggedAt time.Time
}

func newFollower(generator *pleg.GenericPLEG, cache *pleg.PodCache, f flags, p printer, h *history,
	log *slog.Logger) *follower {
	return &follower{generator: generator, cache: cache, flags: f, printer: p, history: h, log: log, began: time.Now()}
}

// follow adds every event to the history, and prints the events that the flags select. It returns
// when ctx ends, or when an event cannot be printed.
func (f *follower) follow(ctx context.Context) error {
	events, ends := f.generator.Watch(), make(chan *pleg.PodLifecycleEvent)
	ctx, cancel := context.WithCancel(ctx)
	var handled sync.WaitGroup
	defer handled.Wait()
	defer cancel()
	handled.Go(func() {
		_ = f.generator.Handle(ctx, pleg.Handler{OnContainerEnded: func(e *pleg.PodLifecycleEvent) {
			select {
			case ends <- e:
			case <-ctx.Done():
			}
		}})
	})
	health := time.NewTicker(healthPeriod)
	defer health.Stop()
	for {
		var err error
		select {
		case e := <-events:
			err = f.take(e)
		case e := <-ends:
			err = f.take(e)
		case <-health.C:
			f.noteHealth()
		case <-ctx.Done():
			return nil
		}
		if err != nil {
			return fmt.Errorf("printing an event: %w", err)
		}
	}
}

// take adds an event to the history, and prints the event if the flags select it. If the disk is
// full, take only counts and logs what is lost, because the page and the metrics are needed then.
func (f *follower) take(e *pleg.PodLifecycleEvent) error {
	l := describe(e, f.cache, time.Now())
	l.Node = f.flags.nodeName
	f.history.recall(&l)
	wasKept := f.history.has(&l)
	if !wasKept {
		f.noteLost(f.history.add(l))
	}
	switch {
	case !f.flags.filter.wants(&l, e.Pod.Labels):
		f.others++
		return nil
	case l.Initial && !f.flags.initial && (wasKept || !f.flags.since.wants(l.happenedAt(), f.began)):
		f.initial++ // if wasKept is true, the history may have been printed
		return nil
	}
	err := f.printer.print(l)
	if errors.Is(err, syscall.ENOSPC) {
		f.noteLost(err)
		return nil
	}
	f.events++
	return err
}

// noteLost counts a line that could not be printed or added to the history because of err. It logs
// err at most once a minute. If err is nil, noteLost does nothing.
func (f *follower) noteLost(err error) {
	if err == nil {
		return
	}
	f.lost++
	if time.Since(f.lostLogged) > time.Minute {
		f.lostLogged = time.Now()
		f.log.Error("Events are lost", "error", err, "events", f.lost)
	}
}

// noteHealth logs the health and adds it to the history if its level or its problem has changed.
// Without a change of level, it does so at most every ten seconds.
func (f *follower) noteHealth() {
	report, now := f.generator.HealthReport(), time.Now()
	c := plegz.NewCondition(report, now)
	if c.Resembles(f.logged) || c.Level == f.logged.Level && now.Sub(f.loggedAt) < 10*time.Second {
		return
	}
	f.logged, f.loggedAt = c, now
	f.noteLost(f.history.add(healthLine{
		PastCondition: plegz.PastCondition{Time: now, Condition: c}, Node: f.flags.nodeName, Report: &report,
	}))
	about := conditionOf(report)
	if len(c.Notes) > 0 {
		about = append(about, "notes", strings.Join(c.Notes, " "))
	}
	level := map[plegz.Level]slog.Level{plegz.LevelWarning: slog.LevelWarn, plegz.LevelError: slog.LevelError}[c.Level]
	f.log.Log(context.Background(), level, c.Sentence, about...)
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
		about = append(about, "lost", f.lost)
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
