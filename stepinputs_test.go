package pleg

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

var (
	returned = regexp.MustCompile(`^([FGI]\S+?)(:| fails:| stopped$)(.*)$`)
	aPod     = regexp.MustCompile(`(\S+?)\(([^)]*)\)`)
)

// take adds one line of a script to the inputs of a step.
func (s *stepper) take(in *inputs, line string) {
	if m := returned.FindStringSubmatch(line); m != nil {
		in.results = append(in.results, s.result(m[1], m[2], strings.TrimSpace(m[3])))
		return
	}
	words := strings.Fields(line + " . .")
	uid := types.UID(words[1])
	switch words[0] {
	case "start", "stop":
		on := words[0] == "start"
		in.periodic = &on
	case "relist":
		s.callers = append(s.callers, &relistCaller{done: make(chan struct{})})
		in.relists = append(in.relists, s.callers[len(s.callers)-1])
	case "request":
		put(&in.requests, uid, struct{}{})
	case "reinspect":
		put(&in.reinspects, uid, struct{}{})
	case "reader":
		if s.r.cfg.ListsPods {
			put(&in.requests, uid, struct{}{})
		}
		s.readers = append(s.readers, s.cache.blockLocked(uid, s.now.Add(-1)))
	case "hint":
		if uid == "anything" {
			uid = ""
		}
		in.addHint(uid)
	case "exit":
		e := ContainerExit{ContainerID: words[1], ExitCode: 1}
		switch words[2] {
		case "of":
			e.PodUID = types.UID(words[3])
		case "at":
			e.FinishedAt = epoch.Add(s.duration(words[3]))
		}
		in.addExit(e)
	case "connected":
		in.addHint("")
	default:
		s.t.Fatalf("there is no input %q", line)
	}
}

// result returns the result of a call in flight, as the script describes it.
func (s *stepper) result(name, how, what string) *result {
	c := s.calls[name]
	if c == nil {
		s.t.Fatalf("%s is not in flight", name)
	}
	delete(s.calls, name)
	res := &result{call: c}
	switch {
	case how == " fails:":
		res.err = errors.New(what)
	case how == " stopped":
		res.err, res.stopped = errStopped, true
	case what == "absent":
		res.err = ErrPodNotFound
	case name[0] == 'F':
		res.pods = s.pods(what)
	case name[0] == 'G':
		res.pod = s.pods(what)[0]
	default:
		res.status = &PodStatus{ID: c.UID}
		for word := range strings.FieldsSeq(what) {
			res.status.ContainerStatuses = append(res.status.ContainerStatuses, s.status(word))
		}
	}
	return res
}

// status parses "a1=running", "a1=running@2s" or "a1=exited:137".
func (s *stepper) status(word string) *Status {
	word, started, hasStarted := strings.Cut(word, "@")
	word, code, hasCode := strings.Cut(word, ":")
	c := s.containers(word)[0]
	status := &Status{ID: c.ID, State: c.State}
	if c.State == ContainerStateExited {
		status.Reason = exitCompleted
	}
	if hasCode {
		status.Reason = exitError
		s.scan(code, &status.ExitCode)
	}
	if hasStarted {
		status.StartedAt = epoch.Add(s.duration(started))
	}
	return status
}

// pods parses "a(a1=running) b()".
func (s *stepper) pods(text string) []*Pod {
	var pods []*Pod
	for _, m := range aPod.FindAllStringSubmatch(text, -1) {
		pods = append(pods, &Pod{ID: types.UID(m[1]), Name: m[1], Containers: s.containers(m[2])})
	}
	if rest := strings.TrimSpace(aPod.ReplaceAllString(text, "")); rest != "" {
		s.t.Fatalf("no pod: %q", rest)
	}
	return pods
}

// containers parses "a1=running a2=exited".
func (s *stepper) containers(text string) []*Container {
	var containers []*Container
	for word := range strings.FieldsSeq(text) {
		id, state, _ := strings.Cut(word, "=")
		if state == "" {
			s.t.Fatalf("no container: %q", word)
		}
		containers = append(containers, &Container{ID: ContainerID{ID: id}, State: State(state)})
	}
	return containers
}

func podText(pod *Pod) string {
	var words []string
	for _, c := range pod.Containers {
		words = append(words, fmt.Sprintf("%s=%s", c.ID.ID, c.State))
	}
	return fmt.Sprintf("%s(%s)", pod.ID, strings.Join(words, " "))
}

func statusText(status *PodStatus) string {
	var words []string
	for _, c := range status.ContainerStatuses {
		words = append(words, fmt.Sprintf("%s=%s", c.ID.ID, c.State))
	}
	return "(" + strings.Join(words, " ") + ")"
}

// state describes each pod as the reconciler knows it, with its open work.
func (s *stepper) state() string {
	var b strings.Builder
	for _, uid := range sortedKeys(s.r.records.byUID) {
		rec := s.r.records.byUID[uid]
		text := fmt.Sprintf("%s absent", uid)
		if rec.pod != nil {
			text = podText(rec.pod)
		}
		fmt.Fprintf(&b, "%s as of %s", text, s.since(rec.observedAt().Time))
		for _, flag := range [...]struct {
			text string
			set  bool
		}{
			{"stale", rec.stale}, {"behind", s.r.records.full.After(rec.at)},
			{"owes a PodSync", rec.sync || rec.inspecting != nil && rec.inspecting.sync},
		} {
			if flag.set {
				fmt.Fprintf(&b, "; %s", flag.text)
			}
		}
		b.WriteString("\n")
	}
	if b.Len() == 0 {
		return "nothing\n"
	}
	return b.String()
}

// failing describes the pods that are reported as failing.
func (s *stepper) failing() string {
	var b strings.Builder
	for _, p := range s.r.health(s.r.sched.Now).FailingPods {
		fmt.Fprintf(&b, "%s: %d failures", p.PodUID, p.Failures)
		if p.Error != "" {
			fmt.Fprintf(&b, ", the last %q", p.Error)
		}
		if !p.StuckSince.IsZero() {
			fmt.Fprintf(&b, ", stuck since %s", s.since(p.StuckSince))
		}
		b.WriteString("\n")
	}
	if b.Len() == 0 {
		return "none\n"
	}
	return b.String()
}

func (s *stepper) since(at time.Time) string {
	if at.IsZero() {
		return "never"
	}
	return at.Sub(epoch).String()
}

func (s *stepper) duration(text string) time.Duration {
	d, err := time.ParseDuration(text)
	if err != nil {
		s.t.Fatal(err)
	}
	return d
}

func (s *stepper) scan(text string, value any) {
	if _, err := fmt.Sscan(text, value); err != nil {
		s.t.Fatal(err)
	}
}
