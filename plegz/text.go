package plegz

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/internal/healthreport"
	"github.com/kubepleg/pleg/internal/printable"
)

// How many of the newest events and conditions the text contains.
const (
	textEvents     = 50
	textConditions = 20
)

// text returns the answer as text for a terminal.
func (a *answer) text() []byte {
	var b bytes.Buffer
	title := cmp.Or(printable.Text(a.Version), "pleg")
	if a.Node != "" {
		title = printable.Text(a.Node) + ", " + title
	}
	fmt.Fprintf(&b, "%s, started %s, at %s\n\n%s\n", title, a.StartedAt.Format(time.RFC3339), a.Time.Format(time.RFC3339),
		a.Sentence)
	for _, note := range a.Notes {
		fmt.Fprintf(&b, "%s\n", sentenceCase(note))
	}
	a.writeHealth(&b)
	a.writeConditions(&b)
	a.writePods(&b)
	a.writeEvents(&b)
	return b.Bytes()
}

// maxCell limits the length of a text in a column, because the longest text would set the width of
// all rows. The last column has no limit. In Kubernetes, a namespace has at most 63 bytes, and a
// name at most 253.
const maxCell = 320

// cell cuts a text to maxCell bytes.
func cell(s string) string { return clipTo(s, maxCell) }

// table writes a heading and rows of columns. It writes nothing if there are no rows.
func table[T any](b *bytes.Buffer, heading string, rows []T, write func(w io.Writer, row T)) {
	if len(rows) == 0 {
		return
	}
	fmt.Fprintln(b)
	w := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, heading)
	for _, row := range rows {
		write(w, row)
	}
	_ = w.Flush() // writing to a buffer cannot fail
}

func (a *answer) writeHealth(b *bytes.Buffer) {
	r := a.condition.report
	ago := func(t time.Time) string {
		if t.IsZero() {
			return "never"
		}
		return roughly(a.Time.Sub(t)) + " ago"
	}
	fmt.Fprintf(b, "\nruntime          %s\n", cmp.Or(printable.Text(r.Runtime), "not known"))
	fmt.Fprintf(b, "last relist      %s\n", ago(r.LastRelist))
	stream := func(s pleg.StreamReport, what string) string {
		if s.LastEvent.IsZero() {
			return string(s.State)
		}
		return string(s.State) + ", last " + what + " " + ago(s.LastEvent)
	}
	fmt.Fprintf(b, "event stream     %s\n", stream(r.Stream, "event"))
	if r.ExitStream.State != pleg.StreamOff {
		fmt.Fprintf(b, "exit stream      %s\n", stream(r.ExitStream, "report"))
	}
	fmt.Fprintf(b, "blocked readers  %d\n", r.BlockedReaders)
	fmt.Fprintf(b, "subscriptions    %d, %s behind\n", r.Subscribers, healthreport.Plural(r.Backlog, "pod"))
	fmt.Fprintf(b, "recorded since   %s\n", a.RecordingSince.Format(time.RFC3339))

	const heading = "CALL IN FLIGHT\tPOD\tCONTAINER ID\tSANDBOX ID\tSINCE\tFOR"
	table(b, heading, a.condition.health.CallsInFlight, func(w io.Writer, c call) {
		pod := cell(printable.Text(nameOf(c.Namespace, c.Name, string(c.PodUID))))
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", cell(callText(c.RuntimeCall)), cmp.Or(pod, "-"),
			cmp.Or(printable.Text(c.ContainerID), "-"), cmp.Or(printable.Text(c.SandboxID), "-"),
			c.Since.UTC().Format(time.RFC3339), roughly(a.Time.Sub(c.Since)))
	})
}

// writeConditions writes the newest conditions. It writes nothing if there is only one.
func (a *answer) writeConditions(b *bytes.Buffer) {
	if len(a.Conditions) < 2 {
		return
	}
	newest := a.Conditions[max(0, len(a.Conditions)-textConditions):]
	table(b, "TIME\tLEVEL\tSENTENCE", newest, func(w io.Writer, l PastCondition) {
		fmt.Fprintf(w, "%s\t%s\t%s\n", l.Time.Format(time.RFC3339), l.Level, l.Sentence)
	})
}

// row is a container of a pod, or a pod without containers.
type row struct {
	pod  *pod
	life *life
}

func (a *answer) writePods(b *bytes.Buffer) {
	var rows []row
	for _, encoded := range a.pods {
		p := new(pod)
		_ = json.Unmarshal(encoded, p) // this package encoded the pod, so this cannot fail
		for i := range p.Containers {
			rows = append(rows, row{p, &p.Containers[i]})
		}
		if len(p.Containers) == 0 {
			rows = append(rows, row{p, nil})
		}
	}
	table(b, "POD\tSTATE\tCONTAINER\tID\tSTATE\tRESTARTS\tFOR\tREASON", rows, func(w io.Writer, r row) {
		name, l := cell(printable.Text(nameOf(r.pod.Namespace, r.pod.Name, r.pod.UID))), r.life
		if l == nil {
			fmt.Fprintf(w, "%s\t%s\t-\t-\t-\t-\t-\t%s\n", name, r.pod.State, cmp.Or(printable.Text(r.pod.Error), "-"))
			return
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\n", name, r.pod.State, cell(printable.Text(l.Name)),
			printable.Text(short(l.ID)), lifeText(l), l.Restarts, a.inState(l),
			cmp.Or(printable.Text(cmp.Or(l.Reason, r.pod.Error)), "-"))
	})
}

// lifeText returns the state of a container. If it has exited, lifeText adds the exit code.
func lifeText(l *life) string {
	if l.ExitCode == nil {
		if l.State == pleg.ContainerStateExited {
			return string(l.State) + ", code unknown"
		}
		return string(l.State)
	}
	text := fmt.Sprintf("%s, exit %d", l.State, *l.ExitCode)
	if l.Unconfirmed {
		text += ", unconfirmed"
	}
	return text
}

// inState returns how long a container has been in its state. The time of an exit without a code may be
// too late: it is the time of a list, or of the runtime's restart.
func (a *answer) inState(l *life) string {
	for _, t := range []time.Time{l.RemovedAt, l.FinishedAt, l.StartedAt, l.CreatedAt} {
		if t.IsZero() {
			continue
		}
		text := roughly(a.Time.Sub(t))
		if l.State == pleg.ContainerStateExited && l.ExitCode == nil {
			text = "at least " + text
		}
		return text
	}
	return "-"
}

func short(id string) string { return id[:min(len(id), 12)] }

func (a *answer) writeEvents(b *bytes.Buffer) {
	newest := a.events[max(0, len(a.events)-textEvents):]
	table(b, "TIME\tPOD\tCONTAINER\tEVENT\tEXIT\tREASON\tCAUSE", newest, func(w io.Writer, e *event) {
		container, exit := cell(printable.Text(e.Container)), "-"
		if e.Sandbox {
			container = "sandbox"
		}
		if e.ExitCode != nil {
			exit = fmt.Sprint(*e.ExitCode)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", e.Time.Format("15:04:05.000"),
			cell(printable.Text(nameOf(e.Namespace, e.Pod, string(e.PodUID)))), cmp.Or(container, "-"), e.Event.Event, exit,
			cmp.Or(cell(printable.Text(e.Reason)), "-"), e.Cause)
	})
}
