package plegz

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/kubepleg/pleg"
)

const (
	// recordFor is how long the recording continues after the last request.
	recordFor = 10 * time.Minute
	// batch is how long events are collected before the pods are read and the streams are woken.
	batch = 200 * time.Millisecond
	// samplePeriod is the time between two samples, and between two health reports.
	samplePeriod = time.Second
)

// recorder records the history while clients make requests, or for the option WithRecording. Its
// methods are safe for concurrent use.
type recorder struct {
	options
	generator *pleg.GenericPLEG
	cache     *pleg.PodCache       // the generator's
	clock     clock.PassiveClock   // the generator's
	gatherer  *prometheus.Registry // for the generator's metrics
	started   time.Time            // when newRecorder was called
	documents documents
	// left receives a value when the last stream ends.
	left chan struct{}

	mu sync.Mutex
	// The fields below are guarded by mu. history is nil while nothing is recorded.
	history *history
	epoch   string // identifies the history; a position is valid only in its own history
	asked   time.Time
	streams int
	news    chan struct{} // closed at the next change; nil if no stream waits
}

func newRecorder(generator *pleg.GenericPLEG, opts []Option) *recorder {
	r := &recorder{
		options: newOptions(opts), generator: generator, cache: generator.Cache(), clock: generator.Clock(),
		gatherer: prometheus.NewRegistry(), started: shownTime(generator.Clock().Now()), left: make(chan struct{}, 1),
	}
	for _, c := range generator.Collectors() {
		_ = r.gatherer.Register(c) // plots of missing metrics stay empty
	}
	if r.options.record != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.beginLocked()
	}
	return r
}

// beginLocked starts the recording if there is none. It does not block.
func (r *recorder) beginLocked() {
	now := r.clock.Now()
	r.asked = now
	if r.history != nil {
		return
	}
	r.history, r.epoch = newHistory(&r.options, now.UTC()), newEpoch()
	// The first answer needs the present health and pods. The method record adds later changes.
	r.observeLocked(r.generator.HealthReport())
	r.history.keepCondition(now.UTC())
	// Subscribe here and not in the goroutine, so that a Stop after this request ends the
	// subscription.
	ctx, cancel := context.WithCancel(context.Background()) //nolint:forbidigo // ends with the recorder's goroutine
	go r.record(ctx, cancel, r.generator.Subscribe(ctx))
}

// position returns the current position, or "" while nothing is recorded. The call counts as a
// request.
func (r *recorder) position() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.history == nil {
		return ""
	}
	r.asked = r.clock.Now()
	return r.positionLocked()
}

func (r *recorder) positionLocked() string {
	return r.epoch + "." + strconv.FormatUint(r.history.number, 10)
}

// newEpoch returns a unique name for a history.
func newEpoch() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // crypto/rand.Read never fails
	return hex.EncodeToString(b[:])
}

// record runs the recording, in the recorder's only goroutine. The recording ends when no request
// has come for the time recordFor, and after a Stop with the last stream, but not while the context
// of WithRecording is active.
func (r *recorder) record(ctx context.Context, cancel context.CancelFunc, events <-chan *pleg.PodLifecycleEvent) {
	defer cancel()
	defer r.documents.forget()
	tick := time.NewTicker(samplePeriod)
	defer tick.Stop()
	var flush <-chan time.Time
	var kept <-chan struct{}
	if r.isKept() {
		kept = r.options.record.Done()
	}
	calls := durations{gatherer: r.gatherer}
	r.takeWitnesses(calls.read(&sample{}))
	stopped := false // whether the generator was stopped during the recording
	isOver := func() bool { return r.streams == 0 && !r.isKept() }
	for {
		select {
		case e, open := <-events:
			if !open {
				stopped = true
				if r.end(isOver) {
					return
				}
				events = r.generator.Subscribe(ctx)
				continue
			}
			r.note(e)
			if flush == nil {
				flush = time.After(batch) //nolint:forbidigo // real time, as the viewers see it
			}
		case <-kept:
			kept = nil
			if r.end(isOver) {
				return
			}
		case <-r.left:
			if stopped && r.end(isOver) {
				return
			}
		case <-flush:
			flush = nil
			r.observe()
		case <-tick.C:
			if r.end(func() bool { return isOver() && r.clock.Since(r.asked) > recordFor }) {
				return
			}
			r.sample(&calls)
		}
	}
}

// isKept reports whether the context of WithRecording is still active.
func (r *recorder) isKept() bool { return r.options.record != nil && r.options.record.Err() == nil }

// end drops the history if isOver returns true. It holds mu while it calls isOver.
func (r *recorder) end(isOver func() bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !isOver() {
		return false
	}
	r.history = nil
	return true
}

// note adds an event to the history. It skips initial events, because observe adds the present state.
func (r *recorder) note(e *pleg.PodLifecycleEvent) {
	if e.Initial {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.history.note(e, NewEvent(e, r.cache, r.clock.Now().UTC()))
}

// takeWitnesses stores the witnesses of exits in the history.
func (r *recorder) takeWitnesses(witnesses []exitWitness) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.history.witnesses = witnesses
}

// observe updates the history with the present health and pods, and wakes the streams.
func (r *recorder) observe() {
	report := r.generator.HealthReport()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.observeLocked(report)
	r.announceLocked()
}

// observeLocked updates the history with a health report and the present pods. It may call the generator
// while it holds mu, because the generator's loop never waits for mu.
func (r *recorder) observeLocked(report pleg.HealthReport) {
	now, pods := r.clock.Now(), r.generator.Pods()
	r.history.describe(newCondition(report, pods, now))
	failing := make(map[types.UID]pleg.FailingPod)
	for _, f := range r.history.condition.report.FailingPods {
		failing[f.PodUID] = f
	}
	r.history.observe(pods, r.cache.Get, failing, now.UTC())
}

// sample records the data that comes without events: health, metrics and pods. It gathers the
// metrics without the lock, because another collector may be slow.
func (r *recorder) sample(calls *durations) {
	report := r.generator.HealthReport()
	s := newSample(&report, r.clock.Now().UTC())
	witnesses := calls.read(s)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.history.witnesses = witnesses
	r.history.sample(s)
	r.observeLocked(report)
	r.history.keepCondition(s.Time)
	r.announceLocked()
}

// announceLocked wakes the waiting streams.
func (r *recorder) announceLocked() {
	if r.news != nil {
		close(r.news)
		r.news = nil
	}
}

// stream counts an open stream. The caller calls done when the stream ends.
func (r *recorder) stream() (done func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.streams++
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.streams--
		r.asked = r.clock.Now()
		if r.streams == 0 {
			select {
			case r.left <- struct{}{}:
			default: // the recorder has not read the last value yet
			}
		}
	}
}
