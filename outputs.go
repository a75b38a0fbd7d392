package pleg

import (
	"time"

	"k8s.io/klog/v2"

	"github.com/kubepleg/pleg/internal/schedule"
)

// outputs is what the reconciler wants done after a step, in the order of the fields. A call
// to cancel may have returned.
type outputs struct {
	cancel   []cancelCall
	begin    []beginCall
	log      stepLog
	relisted []*relistCaller // their relist is complete
	// listsRecovered: a full list has succeeded after one that failed.
	listsRecovered bool
	// wake is when the next step is due; zero for never.
	wake time.Time
}

// beginCall is a call to make.
type beginCall struct {
	*schedule.Call
	pod *Pod // to inspect, or as it is known; nil if it is not
}

// cancelCall is a call to cancel.
type cancelCall struct {
	*schedule.Call
	cause error
}

// stepLog is what a step has to log. It is written after the step, when no lock is held: a
// logger is code of a user, which may call the generator, or hang.
type stepLog struct {
	verbosity int // the logger's
	lines     []logLine
}

// logLine is one call of the logger.
type logLine struct {
	level         int // errorLevel for an error
	err           error
	message       string
	keysAndValues []any
}

const errorLevel = -1

// verbosityOf returns the highest level of those in use at which a logger is enabled.
func verbosityOf(logger klog.Logger) int {
	for _, level := range [...]int{5, 4, 2} {
		if logger.V(level).Enabled() {
			return level
		}
	}
	return 0
}

func (l *stepLog) enabled(level int) bool { return level <= l.verbosity }

// info logs a line if its level is enabled. Where it is not, the arguments cost memory: who logs
// often asks before.
func (l *stepLog) info(level int, message string, keysAndValues ...any) {
	if l.enabled(level) {
		l.lines = append(l.lines, logLine{level, nil, message, keysAndValues})
	}
}

func (l *stepLog) error(err error, message string, keysAndValues ...any) {
	l.lines = append(l.lines, logLine{errorLevel, err, message, keysAndValues})
}

func (l *stepLog) write(logger klog.Logger) {
	for _, line := range l.lines {
		if line.level == errorLevel {
			logger.Error(line.err, line.message, line.keysAndValues...)
		} else {
			logger.V(line.level).Info(line.message, line.keysAndValues...)
		}
	}
}
