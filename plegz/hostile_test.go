package plegz_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
	"github.com/kubepleg/pleg/plegz"
)

// hostileNames contains names that could attack a browser, a terminal or a reader.
var hostileNames = map[string]string{
	"script":           "<script>alert(1)</script>",
	"attribute":        `" onmouseover="alert(1)`,
	"end of script":    "</script><img src=x onerror=alert(1)>",
	"entity":           "&lt;b&gt;",
	"escape sequence":  "\x1b[2J\x1b]0;title\x07",
	"C1":               "\u009b2J",
	"NUL and DEL":      "a\x00b\x7f",
	"lines":            "a\r\n\r\ndata: {}\n\nid: 1\n\n",
	"tabs":             "a\tb\vc",
	"separators":       "a\u2028b\u2029c",
	"right to left":    "\u202egnp.exe\u2066",
	"zero width":       "a\u200bb\ufeff\u2060c",
	"tags":             "\U000e0041\U000e007f",
	"private use":      "\ue000\U000f0000",
	"not UTF-8":        "\xff\xfe\xc3(",
	"surrogate":        "\xed\xa0\x80",
	"format directive": "%s%n%!d(MISSING)",
	"template":         "{{.}}${x}",
	"long":             strings.Repeat("long", 100_000),
	"long and hidden":  strings.Repeat("\U000e0041", 100_000),
	"empty":            "",
}

// Names, reasons, messages and errors are shown as text. They cannot add HTML, control a terminal
// or end a message of the stream. They are cut if they are long.
func TestHostileNames(t *testing.T) {
	for kind, hostile := range hostileNames {
		t.Run(kind, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t, plegz.WithLabels())
				document := n.get("/?format=html").Body.String()
				p := plegtest.NewPod("uid", plegtest.Running("id"+hostile))
				p.Namespace, p.Name, p.RuntimeHandler = hostile, hostile, hostile
				p.Labels, p.Annotations = map[string]string{hostile: hostile}, map[string]string{hostile: hostile}
				p.Containers[0].Name, p.Containers[0].Image = hostile, hostile
				n.SetPod(p)
				n.pass(time.Second)
				n.open("/?format=stream", "").end()
				n.EmitExit(pleg.ContainerExit{ContainerID: "id" + hostile, ExitCode: 1})
				n.pass(3 * time.Second)
				check(t, n, "unconfirmed")
				n.ExitContainer("uid", "id"+hostile, 1, hostile)
				n.pass(time.Second)
				check(t, n, "exited")
				n.BreakExitStreams(errors.New(hostile))
				fail := n.Fail(plegtest.GetPodStatus, "uid", errors.New(hostile+"."))
				n.SetPod(p)
				n.pass(2 * time.Second)
				check(t, n, "failing")
				fail()
				n.BlockIgnoringCancel(plegtest.GetPods, plegtest.AnyPod)
				n.BlockIgnoringCancel(plegtest.GetPodStatus, plegtest.AnyPod)
				n.pass(14 * time.Second)
				check(t, n, "stuck")
				n.Heal()
				n.RemovePod("uid")
				n.pass(2 * time.Second)
				check(t, n, "removed")
				if n.get("/?format=html").Body.String() != document {
					t.Error("the HTML depends on names")
				}
			})
		})
	}
}

// check checks all formats of the answer on a node with hostile names.
func check(t *testing.T, n *node, when string) {
	t.Helper()
	s := n.open("/?format=stream", "")
	synctest.Wait()
	message := <-s.messages
	s.end()
	synctest.Wait()
	if lines := bytes.Split(bytes.TrimSuffix(message, []byte("\n\n")), []byte("\n")); len(lines) != 3 ||
		!bytes.HasPrefix(lines[2], []byte("data: {")) {
		t.Errorf("%s: a message of %d lines:\n%.500q", when, len(lines), message)
	}
	if len(s.messages) > 0 {
		t.Errorf("%s: %d messages more", when, len(s.messages))
	}
	for format, body := range map[string][]byte{
		"text": n.get("/?format=text").Body.Bytes(), "json": n.get("/?format=json").Body.Bytes(), "stream": message,
	} {
		isHidden := func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }
		if !utf8.Valid(body) || bytes.ContainsFunc(body, isHidden) {
			t.Errorf("%s: %s has a name as it is:\n%.2000q", when, format, body)
		}
		if format != "text" && bytes.ContainsAny(body, "<>&") {
			t.Errorf("%s: %s has HTML:\n%.2000s", when, format, body)
		}
		if len(body) > 150_000 {
			t.Errorf("%s: %s has %d bytes", when, format, len(body))
		}
		if format == "text" {
			checkRows(t, body)
		}
	}
}

// checkRows fails the test if a name starts a new line in the text.
func checkRows(t *testing.T, text []byte) {
	t.Helper()
	for _, line := range bytes.Split(text, []byte("\n")) {
		if bytes.HasPrefix(line, []byte("data:")) || bytes.HasPrefix(line, []byte("id:")) {
			t.Errorf("a name has made a line: %.200q", line)
		}
	}
}

// The text stays short although one name is very long. Names are cut, because the longest name sets
// the width of its column.
func TestLongNamesInText(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		for i := range 300 {
			n.setPod("team", fmt.Sprint("pod-", i), plegtest.Running(fmt.Sprint("container-", i)))
		}
		n.setPod(strings.Repeat("\xff", 5000), strings.Repeat("\xff", 5000), plegtest.Running("x"))
		n.pass(2 * time.Second)
		if size := n.get("/?format=text").Body.Len(); size > 200_000 {
			t.Errorf("%d bytes", size)
		}
	})
}

// Labels and annotations are shown only with WithLabels. Long texts are cut, and only the first 50
// are shown.
func TestLabels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, opts := range [][]plegz.Option{nil, {plegz.WithLabels()}} {
			n := newNode(t, opts...)
			p := plegtest.NewPod("a", plegtest.Running("a"))
			p.Labels, p.Annotations = map[string]string{"team": "label-secret"}, map[string]string{"note": "annotation-secret"}
			p.Containers[0].Labels = map[string]string{"x": "container-secret"}
			p.Containers[0].Annotations = map[string]string{"x": "container-secret"}
			n.SetPod(p)
			n.pass(time.Second)
			for _, format := range []string{"json", "text", "html"} {
				want := 0
				if format == "json" {
					want = 2 * len(opts)
				}
				body := n.get("/?format=" + format).Body.String()
				if shown := strings.Count(body, "secret"); shown != want {
					t.Errorf("%s has %d with %d options, want %d:\n%s", format, shown, len(opts), want, body)
				}
			}
			n.g.Stop()
		}
		n := newNode(t, plegz.WithLabels())
		p := plegtest.NewPod("a", plegtest.Running("a"))
		p.Annotations = map[string]string{"": strings.Repeat("x", 1<<20)}
		for i := range 10_000 {
			p.Annotations[fmt.Sprintf("key-%05d", i)] = strings.Repeat("y", 100)
		}
		n.SetPod(p)
		n.pass(time.Second)
		s := n.state().Pods[0].Annotations
		if len(s) != 50 || len(s[""]) > 1100 || s["key-00048"] == "" {
			t.Errorf("%d annotations, the longest of %d bytes", len(s), len(s[""]))
		}
	})
}

// A time that JSON cannot express is converted to UTC, or left out. The rest of the answer is
// complete.
func TestTimesOutOfRange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.EmitOnChange(false) // otherwise the pod might be inspected before SetStatus
		far := time.Date(20000, 1, 1, 0, 0, 0, 0, time.UTC)
		n.setPod("shop", "web", plegtest.Exited("nginx"))
		status := &pleg.Status{
			ID: pleg.ContainerID{Type: "fake", ID: "nginx"}, State: pleg.ContainerStateExited, ExitCode: 3,
			CreatedAt: far, StartedAt: far, FinishedAt: time.Now().In(time.FixedZone("", 30*60*60)),
		}
		n.SetStatus("shop/web", &pleg.PodStatus{
			ID: "shop/web", Namespace: "shop", Name: "web", ContainerStatuses: []*pleg.Status{status},
		})
		n.pass(time.Second)
		s := n.state()
		if len(s.Pods) != 1 || len(s.Pods[0].Containers) != 1 || *s.Pods[0].Containers[0].ExitCode != 3 ||
			!s.Pods[0].Containers[0].FinishedAt.Equal(status.FinishedAt) {
			t.Errorf("%+v", s)
		}
	})
}
