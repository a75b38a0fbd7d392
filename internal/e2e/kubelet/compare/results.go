package main

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/kubepleg/pleg/internal/e2e/measure"
)

// kind is what was measured, as the table says it.
type kind string

const (
	crashed           kind = "container killed → successor created"
	announced         kind = "killed → CRI's event of its end"
	answered          kind = "CRI's event of its end → successor created"
	exited            kind = "killed → the runtime's exit event"
	taken             kind = "killed → the kubelet's sync loop has the death"
	followed          kind = "the runtime's exit event → successor created"
	alone             kind = "successors that were created after the end of the container before"
	started           kind = "manifest written → pod Running in `/pods`"
	restarted         kind = "kubelet killed and started → all pods Running in `/pods`"
	handedOver        kind = "stock → ours → stock: kubelet started → `/pods` says what containerd says"
	handedCrash       kind = "stock → ours → stock: kubelet started → successor of what died without one"
	untouched         kind = "stock → ours → stock: containers that were left alone"
	crashedBesideHung kind = "one pod hangs: another's container killed → successor created"
	startedBesideHung kind = "one pod hangs: manifest written → pod Running in `/pods`"
	releasedSuccessor kind = "one pod hangs: its calls are answered again → its own successor created"
	toldBesideWedged  kind = "a container is wedged: another killed → the generator has told it"
	takenBesideWedged kind = "a container is wedged: another killed → the sync loop has taken it"
	shownBesideWedged kind = "a container is wedged: another killed → `/pods` shows it"
	madeAfterWedge    kind = "a container is wedged: its end → successor of the other created"
	crashedUndeleted  kind = "`runc delete` hangs for 5 s: container killed → successor created"
	startedUndeleted  kind = "`runc delete` hangs for 5 s: container killed → successor started"
	thawedAfterFreeze kind = "containerd frozen and thawed: thaw → successor of what was killed meanwhile"
	noticedUnhealthy  kind = "containerd frozen past the threshold: freeze → \"PLEG is not healthy\""
	thawedAfterLong   kind = "containerd frozen past the threshold: thaw → successor of what was killed meanwhile"
	initFailed        kind = "init container fails, pod is removed: pods that were what they should be"
	initOfRunc        kind = "init container fails, pod is removed: init containers that runc ended, with code 2"
	agreed            kind = "pods come and go under restarts and faults: rest → `/pods` says what containerd says"
)

// kinds are the rows of the table, in its order; those of idle nodes follow.
var kinds = []kind{
	crashed, announced, answered, exited, taken, followed, alone, started, restarted, crashedBesideHung, startedBesideHung,
	releasedSuccessor, toldBesideWedged, takenBesideWedged, shownBesideWedged, madeAfterWedge, crashedUndeleted,
	startedUndeleted, thawedAfterFreeze, noticedUnhealthy, thawedAfterLong, handedOver, handedCrash, untouched, agreed,
	initFailed, initOfRunc,
}

const (
	idleFormat   = "idle with %d pods: CPU of %s, of each second"
	bothPrograms = "kubelet and containerd together"
)

func idleKind(pods int, program string) kind { return kind(fmt.Sprintf(idleFormat, pods, program)) }

// position is the order of the rows of the table: kinds, and then the idle nodes by their
// pods.
func (k kind) position() int {
	if i := slices.Index(kinds, k); i >= 0 {
		return i
	}
	var pods int
	_, _ = fmt.Sscanf(string(k), "idle with %d pods", &pods) // else 0, which is first of the rest
	programs := []string{"kubelet", "containerd", bothPrograms}
	return len(kinds) + pods*len(programs) +
		slices.IndexFunc(programs, func(p string) bool { return k == idleKind(pods, p) })
}

// count is how often something was as it should be, of all times.
type count struct{ hits, all int }

// outcome is what was measured of one kind under one kubelet.
type outcome struct {
	samples measure.Samples
	count   count
}

// remark is what a kubelet said of its health at a moment.
type remark struct{ scenario, healthz, unhealthy string }

// results are what was measured. Their methods may be called from several goroutines.
type results struct {
	mu       sync.Mutex
	runs     []runInfo                    // guarded by mu
	fresh    bool                         // the last run has measured something; guarded by mu
	outcomes map[kind]map[string]*outcome // by the name of the kubelet; guarded by mu
	remarks  map[string][]remark          // the same
}

func newResults() *results {
	return &results{outcomes: make(map[kind]map[string]*outcome), remarks: make(map[string][]remark)}
}

func (r *results) outcomeLocked(variant string, k kind) *outcome {
	if r.outcomes[k] == nil {
		r.outcomes[k] = make(map[string]*outcome)
	}
	if r.outcomes[k][variant] == nil {
		r.outcomes[k][variant] = new(outcome)
	}
	return r.outcomes[k][variant]
}

// get returns what was measured; its zero value if nothing was.
func (r *results) get(variant string, k kind) outcome {
	r.mu.Lock()
	defer r.mu.Unlock()
	if o := r.outcomes[k][variant]; o != nil {
		return outcome{slices.Clone(o.samples), o.count}
	}
	return outcome{}
}

func (r *results) add(v variant, k kind, d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	o := r.outcomeLocked(v.name, k)
	o.samples = append(o.samples, d)
	r.fresh = true
	say("  %s: %s", k, show(d))
}

func (r *results) hit(v variant, k kind) { r.tally(v, k, 1) }

func (r *results) miss(v variant, k kind) { r.tally(v, k, 0) }

func (r *results) tally(v variant, k kind, hits int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	o := r.outcomeLocked(v.name, k)
	o.count.hits += hits
	o.count.all++
}

// remark keeps what a kubelet says of its health, in the place of what it said in this
// scenario before.
func (r *results) remark(v variant, scenario, healthz, unhealthy string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	said := slices.DeleteFunc(r.remarks[v.name], func(m remark) bool { return m.scenario == scenario })
	r.remarks[v.name] = append(said, remark{scenario, healthz, unhealthy})
	say("  %s: /healthz: %s; not healthy: %q", scenario, healthz, unhealthy)
}

// measured returns the kinds and the kubelets that there is anything of, in the order of
// the table.
func (r *results) measured() ([]kind, []variant) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var rows []kind
	names := make(map[string]bool)
	for k, of := range r.outcomes {
		rows = append(rows, k)
		for name := range of {
			names[name] = true
		}
	}
	slices.SortFunc(rows, func(a, b kind) int { return a.position() - b.position() })
	return rows, slices.DeleteFunc(slices.Clone(variants), func(v variant) bool { return !names[v.name] })
}

func show(d time.Duration) string {
	if d < 2*time.Second {
		return fmt.Sprintf("%.0f ms", float64(d)/float64(time.Millisecond))
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}
