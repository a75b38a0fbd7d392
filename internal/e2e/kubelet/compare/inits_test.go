package compare

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubepleg/pleg/internal/e2e/kubelet"
	"github.com/kubepleg/pleg/internal/e2e/measure"
	"github.com/kubepleg/pleg/internal/e2e/testnode"
)

const (
	initsAtOnce = 8
	initPrefix  = "init"
	// codeOfRunc is how runc's own init exits if a signal reaches it before it has become the
	// program of the container: as process 1 it survives the signal, and Go's runtime exits with this.
	codeOfRunc = 2
)

// initManifest is a static pod whose init container fails, so that its other one never begins.
func initManifest(name string) map[string]any {
	m := testnode.StaticPod(name, map[string]any{"command": []string{"true"}})
	spec := m["spec"].(map[string]any)
	fail := maps.Clone(spec["containers"].([]any)[0].(map[string]any))
	fail["name"], fail["command"] = "fail", []string{"false"}
	spec["restartPolicy"], spec["terminationGracePeriodSeconds"], spec["initContainers"] = "Never", 1, []any{fail}
	return m
}

// failInits has pods come whose init container fails, and removes them at any moment, half of them
// while that container begins. Kubernetes has a test like it, which fails now and then since relists
// are quick (kubernetes#135713).
func (n *node) failInits() {
	n.start(false)
	watching, stop := context.WithCancel(n.t.Context())
	shown := shownInits{codes: make(map[string]int), faults: make(map[string]string)}
	var watcher sync.WaitGroup
	watcher.Go(func() {
		for measure.Wait(watching, 20*time.Millisecond) == nil {
			if pods, err := n.kubelet.Pods(watching); err == nil {
				shown.see(pods)
			}
		}
	})
	var names []string
	var workers errgroup.Group
	workers.SetLimit(initsAtOnce)
	for i := range *inits {
		name := n.next(initPrefix)
		names = append(names, name)
		workers.Go(func() error { return n.failInit(name, i%2 == 0) })
	}
	err := workers.Wait()
	_ = measure.Wait(watching, settle)
	stop()
	watcher.Wait()
	n.must(err)
	for _, name := range names {
		n.judgeInit(name, shown)
	}
	n.await("agrees with the runtime", n.agrees(len(n.names)))
}

// failInit has one such pod come and go: as soon as its init container is created, and a moment
// later, or at any time within the two seconds that Kubernetes' test takes.
func (n *node) failInit(name string, asItBegins bool) error {
	n.must(n.options.WriteManifest(name, initManifest(name)))
	moment := rand.N(2 * time.Second)
	if asItBegins {
		if _, found := n.find(patience(), func(c container) bool { return c.pod == name }); !found {
			return fmt.Errorf("pod %s has no container", name)
		}
		moment = rand.N(100 * time.Millisecond)
	}
	n.wait(moment)
	n.remove(name)
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); n.wait(50 * time.Millisecond) {
		list, err := n.client.ListPodSandbox(n.t.Context(), &runtimeapi.ListPodSandboxRequest{
			Filter: &runtimeapi.PodSandboxFilter{
				LabelSelector: map[string]string{labelPod: name + "-" + nodeName},
				State:         &runtimeapi.PodSandboxStateValue{State: runtimeapi.PodSandboxState_SANDBOX_READY},
			},
		})
		if err != nil || len(list.Items) == 0 {
			return err
		}
	}
	return fmt.Errorf("pod %s does not go", name)
}

// judgeInit counts whether a pod that is gone was what it should have been, and how its init
// container ended.
func (n *node) judgeInit(name string, shown shownInits) {
	fault := shown.faults[name]
	n.mu.Lock()
	for _, c := range n.book {
		switch code, is := shown.codes[name]; {
		case c.pod != name || c.name == "":
		case c.name != "fail":
			fault = "its container " + c.name + " was created"
		case c.reported.IsZero(): // it has never begun
		case !slices.Contains([]int{1, codeOfRunc, 128 + 9, 128 + 15}, c.code):
			fault = fmt.Sprint("its init container ended with ", c.code)
		case is && code != c.code:
			fault = fmt.Sprintf("its init container ended with %d, and is shown with %d", c.code, code)
		case c.code == codeOfRunc:
			n.t.Logf("runc ended the init container of pod %s", name)
		}
	}
	n.mu.Unlock()
	const kind = "init container fails, pod is removed: pods that were what they should be"
	n.tally(kind, fault == "", "pod %s: %s", name, fault)
}

// shownInits is what the kubelet shows of the pods whose init container fails.
type shownInits struct {
	codes  map[string]int    // of the init containers that it has shown to be dead, by pod
	faults map[string]string // what it should not have shown
}

func (s shownInits) see(pods kubelet.PodList) {
	for _, p := range pods.Items {
		name := withoutNode(p.Metadata.Name)
		if !strings.HasPrefix(name, initPrefix) {
			continue
		}
		for _, c := range p.Status.ContainerStatuses {
			if c.State.Running != nil || c.State.Terminated != nil {
				s.faults[name] = "its container is shown to have begun"
			}
		}
		for _, c := range p.Status.InitContainerStatuses {
			code, was := s.codes[name]
			switch dead := c.State.Terminated; {
			case dead == nil && was:
				s.faults[name] = "its init container was dead, and is not any more"
			case dead != nil && was && dead.ExitCode != code:
				s.faults[name] = fmt.Sprintf("its init container ended with %d, and then with %d", code, dead.ExitCode)
			case dead != nil:
				s.codes[name] = dead.ExitCode
			}
		}
	}
}

// TestShownInits shows what a kubelet must not show of a pod whose init container fails.
func TestShownInits(t *testing.T) {
	const (
		waiting = `{"waiting": {}}`
		running = `{"running": {}}`
		failed  = `{"terminated": {"exitCode": 1}}`
		killed  = `{"terminated": {"exitCode": 137}}`
	)
	for _, c := range []struct {
		shown [][2]string // states of the init container and of the other
		want  string
	}{
		{[][2]string{{waiting, waiting}, {running, waiting}, {failed, waiting}, {failed, waiting}}, ""},
		{[][2]string{{failed, running}}, "its container is shown to have begun"},
		{[][2]string{{failed, failed}}, "its container is shown to have begun"},
		{[][2]string{{failed, waiting}, {running, waiting}}, "its init container was dead, and is not any more"},
		{[][2]string{{failed, waiting}, {killed, waiting}}, "its init container ended with 1, and then with 137"},
	} {
		s := shownInits{codes: make(map[string]int), faults: make(map[string]string)}
		for _, states := range c.shown {
			var pods kubelet.PodList
			answer := `{"items": [{"metadata": {"name": "init1-node"}, "status": {"initContainerStatuses": [{"state": ` +
				states[0] + `}], "containerStatuses": [{"state": ` + states[1] + `}]}}, {"metadata": {"name": "pod001-node"}, ` +
				`"status": {"containerStatuses": [{"state": ` + running + `}]}}]}`
			if err := json.Unmarshal([]byte(answer), &pods); err != nil {
				t.Fatal(err)
			}
			s.see(pods)
		}
		if got := s.faults["init1"]; got != c.want || len(s.faults) > 1 {
			t.Errorf("of %v the faults are %q, want %q", c.shown, s.faults, c.want)
		}
	}
}
