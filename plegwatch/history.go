package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"gopkg.in/natefinch/lumberjack.v2"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/internal/healthreport"
	"github.com/kubepleg/pleg/plegz"
)

const (
	// historyFile is the newest file of a history. Older files have a time in their names.
	historyFile = "history.jsonl"
	// defaultHistorySize is the most that the files of a history contain together, in MiB.
	defaultHistorySize = 8
)

// past is the history that earlier agents wrote, oldest entry first.
type past struct {
	entries []entry
	// unreadable is the number of lines that are incomplete or have another format.
	unreadable int
}

// entry is a line of a history. Either event or health is set: the line is an event of a container,
// or a change of the health.
type entry struct {
	event  *line
	health *healthLine
}

// readHistory reads the history in a directory. A program may write to it at the same time.
func readHistory(dir string) (*past, error) {
	if _, err := os.Stat(dir); err != nil {
		return nil, err
	}
	files, err := filepath.Glob(filepath.Join(dir, "history*.jsonl"))
	if err != nil {
		return nil, err
	}
	p := new(past)
	for _, name := range files { // sorted; the newest is last
		text, err := os.ReadFile(name)
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // the writer may have removed it
			return nil, err
		}
		for l := range bytes.Lines(text) {
			if l = bytes.TrimSpace(l); len(l) > 0 {
				p.add(l)
			}
		}
	}
	return p, nil
}

// add adds a line.
func (p *past) add(text []byte) {
	switch l, h := new(line), new(healthLine); {
	case json.Unmarshal(text, l) == nil && l.Event != "" && !l.Time.IsZero():
		p.entries = append(p.entries, entry{event: l})
	case json.Unmarshal(text, h) == nil && h.Level != "" && !h.Time.IsZero():
		p.entries = append(p.entries, entry{health: h})
	default:
		p.unreadable++
	}
}

// conditions returns the changes of the health, oldest first.
func (p *past) conditions() (all []plegz.PastCondition) {
	for _, e := range p.entries {
		if e.health != nil {
			all = append(all, e.health.PastCondition)
		}
	}
	return all
}

// trouble returns the problems with which the past ends.
func (p *past) trouble() []plegz.PastCondition {
	return healthreport.Trouble(p.conditions(), func(c plegz.PastCondition) bool { return c.Level == plegz.LevelOK })
}

// option returns the option that adds the past to the page.
func (p *past) option() plegz.Option {
	var events []plegz.Event
	for _, e := range p.entries {
		switch {
		case e.health != nil:
		case e.event.Event == pleg.ContainerEnded: // not on the page, unlike deaths
		case !e.event.Initial || e.event.Event == pleg.ContainerDied:
			shown := plegz.Event(*e.event)
			shown.Time = e.event.shownTime()
			events = append(events, shown)
		}
	}
	slices.SortStableFunc(events, func(a, b plegz.Event) int { return a.Time.Compare(b.Time) })
	return plegz.WithPast(events, p.conditions())
}

// history is the history that this agent writes. A nil history writes nothing.
type history struct {
	w io.WriteCloser
	// torn is true if the last write failed, so that the file may end in the middle of a line.
	torn bool
	// known contains when the containers started whose events earlier agents wrote, by the event's key.
	known map[string]time.Time
	// ends contains the newest end that earlier agents wrote of each container, by ID.
	ends map[string]*line
}

// openHistory reads the history in a directory and returns it as a past. The returned history
// continues it. If the directory does not exist, openHistory makes it. size is the maximum size of
// the files together, in MiB.
func openHistory(dir string, size int) (*history, *past, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, nil, fmt.Errorf("opening the history: %w", err)
	}
	p, err := readHistory(dir)
	if err != nil {
		return nil, nil, fmt.Errorf("reading the history: %w", err)
	}
	// The history consists of two files. When the first is full, it is renamed, and the previous
	// full file is removed.
	file := &lumberjack.Logger{Filename: filepath.Join(dir, historyFile), MaxSize: size / 2, MaxBackups: 1}
	h := &history{w: file, known: make(map[string]time.Time), ends: make(map[string]*line)}
	for _, e := range p.entries {
		if e.event == nil {
			continue
		}
		l := *e.event
		h.known[l.key()] = l.StartedAt
		if l.ExitCode == nil {
			continue
		}
		h.ends[l.ContainerID] = e.event
		if l.Event == pleg.PodSync { // it corrects a death, so this death is no news
			l.Event = pleg.ContainerDied
			h.known[l.key()] = l.StartedAt
		}
		l.ExitCode = nil // such an event is no news: the runtime has forgotten the code
		h.known[l.key()] = l.StartedAt
	}
	// The file may end in the middle of a line that an earlier agent wrote.
	if err := h.write([]byte("\n")); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("opening the history: %w", err), h.close())
	}
	return h, p, nil
}

// key identifies an event of a container. A corrected end has a key of its own.
func (l *line) key() string {
	key := l.ContainerID + " " + string(l.Event)
	if l.ExitCode != nil {
		key += fmt.Sprint(" ", *l.ExitCode, " ", l.Reason)
	}
	return key
}

// has reports whether an earlier agent has already written l, about the same life of the container.
func (h *history) has(l *line) bool {
	if h == nil || l.ContainerID == "" {
		return false
	}
	started, known := h.known[l.key()]
	return known && (started.IsZero() || l.StartedAt.IsZero() || started.Equal(l.StartedAt))
}

// recall adds the end that an earlier agent wrote, if the runtime has forgotten it.
func (h *history) recall(l *line) {
	if h == nil || l.ExitCode != nil || l.State != string(pleg.ContainerStateExited) {
		return
	}
	if end := (*plegz.Event)(h.ends[l.ContainerID]); end != nil && end.IsEndOf(l.StartedAt) {
		l.ExitCode, l.Reason, l.FinishedAt = end.ExitCode, end.Reason, cmp.Or(end.FinishedAt, l.FinishedAt)
	}
}

// add writes a line or a healthLine.
func (h *history) add(v any) error {
	if h == nil {
		return nil
	}
	text, err := jsonLine(v)
	if err != nil {
		return err
	}
	return h.write(text)
}

// write writes a line in a single call. So an agent that is killed leaves at most one incomplete
// line.
func (h *history) write(text []byte) error {
	if h.torn {
		text = append([]byte("\n"), text...)
	}
	_, err := h.w.Write(text)
	h.torn = err != nil
	return err
}

func (h *history) close() error {
	if h == nil {
		return nil
	}
	return h.w.Close()
}
