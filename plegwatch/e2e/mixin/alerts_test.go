package mixin_test

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/internal/test/proctest"
	"github.com/kubepleg/pleg/plegtest"
	"github.com/kubepleg/pleg/plegtest/criserver"
)

// wanted contains the alerts that TestAlertsFireAndResolve expects, each with its instance. The
// comments name the faults that cause the alerts.
var wanted = []string{
	// The runtime does not answer the inspection of one pod, it refuses event streams, and some of
	// its containers die. PlegEventStreamDown fires only for some seconds: the test shortens the
	// alert's window, but not the stream's back-off.
	"PlegInspectionsStuck watch", "PlegEventStreamDown watch", "PlegContainersCrashing watch", "PlegOOMKills watch",
	// The runtime is frozen. It answers neither the current list nor later inspections.
	"PlegNotSeen agent", "PlegInspectionsStuck agent",
	// Lists take longer than the shortened threshold, and the program's output is not read.
	"PlegRelistSlow unread", "KubeletPlegDurationHigh unread", "PlegSubscriberBehind unread",
	// An exit event reports the exit of a container, but the runtime's status still shows it as
	// running.
	"PlegExitsUnconfirmed fake",
	// The runtime lists a container without an ID.
	"PlegBadData fake",
	// The agent starts without a runtime.
	"PlegUnhealthy early", "PlegNeverListed early", "PlegEventStreamDown early",
	// The runtime answers the inspection of another pod with an error.
	"PlegInspectionsFailing watch",
	// The runtime refuses the request for exits.
	"PlegExitStreamDown noexits",
	// Two agents have ended. Together with the agent noexits, three agents are not well.
	"PlegAgentGone gone", "PlegAgentGone lost", "PlegFleetUnhealthy ",
}

// These maps replace thresholds in the rules by shorter ones. The shorter ones still allow for
// lists that take some seconds, as on a busy machine.
var (
	ruleThresholds = map[string]string{
		"changes(kubelet_pleg_last_seen_seconds[2m])": "changes(kubelet_pleg_last_seen_seconds[8s])",
		// plegwatch caches its metrics for a second, so two scrapes may read the same values.
		"count_over_time(kubelet_pleg_last_seen_seconds[2m]) > 1": "count_over_time(kubelet_pleg_last_seen_seconds[8s]) > 5",
		"count_over_time(kubelet_pleg_last_seen_seconds[90s] offset 2m)": "count_over_time(" +
			"kubelet_pleg_last_seen_seconds[6s] offset 8s)",
	}
	alertThresholds = map[string]string{
		`{quantile="0.99"} >= 10`: `{quantile="0.99"} >= 1`,
	}
	mixinThresholds = map[string]string{`{quantile="0.99"} >= 10`: `{quantile="0.99"} >= 1`}
)

// quiet contains the queries that return nothing on a node without faults. The test causes no fault
// for them.
var quiet = []string{"panel Bad data A", "panel Bad data B"}

// A Prometheus scrapes nodes with injected faults. It fires exactly the alerts in wanted, and
// resolves them after the faults are healed. The rules come from plegwatch/mixin/, with their
// minutes shortened. In the same run, each query of the dashboard and of kubernetes-mixin returns
// values.
func TestAlertsFireAndResolve(t *testing.T) {
	p := build(t)
	node := proctest.CRIServer(t)
	watch := target{"watch", proctest.FreeAddress(t)}
	p.startWatch(t, node, watch.address)
	agent := target{"agent", proctest.FreeAddress(t)}
	agentNode := p.startAgent(t, agent.address)
	unreadNode, unread := proctest.CRIServer(t), target{"unread", proctest.FreeAddress(t)}
	stdout := p.startWatch(t, unreadNode, unread.address)
	early := target{"early", proctest.FreeAddress(t)} // the agent for this address starts later
	fake, fakeAddress, _ := startFake(t)
	_, goneAddress, endGone := startFake(t)
	_, lostAddress, endLost := startFake(t)
	exitsNode, noexits := proctest.CRIServer(t), target{"noexits", proctest.FreeAddress(t)}
	unavailable := status.Error(codes.Unavailable, "a fault of the test")
	healExits := exitsNode.Fail("Subscribe", "", unavailable)
	targets := []target{
		watch, agent, unread, {"fake", fakeAddress}, early, {"gone", goneAddress}, {"lost", lostAddress}, noexits,
	}
	prom := startPrometheus(t, targets, map[string]string{
		"rules":            shorten(t, readFile(t, filepath.Join(mixinDir, "rules.yaml")), ruleThresholds),
		"alerts":           shorten(t, readFile(t, filepath.Join(mixinDir, "alerts.yaml")), alertThresholds),
		"kubernetes-mixin": shorten(t, readFile(t, "testdata/kubernetes-mixin.yaml"), mixinThresholds),
	})
	victims := startVictims(t, node)
	busy := unreadNode.RunPod(criserver.PodConfig{})

	kubernetesMixin := append(mixinPanels("10s"), query{"the rule of kubernetes-mixin", mixinRule})
	eventually(t, patience, func() string { return empty(prom, kubernetesMixin) })
	eventually(t, patience, func() string {
		return empty(prom, []query{{"gone", `pleg_healthy{instance="gone"}`}, {"lost", `pleg_healthy{instance="lost"}`}})
	})
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, patience, func() string {
		nodes := make(map[string]string)
		for _, s := range prom.values(query{"", mixinRule}) {
			nodes[string(s.Metric["instance"])] = string(s.Metric["node"])
		}
		return cmp.Diff(nodes, map[string]string{"watch": host, "agent": "worker-1", "unread": host})
	})
	if firing := prom.firing(); len(firing) > 0 {
		t.Errorf("before any fault: %v", slices.Sorted(maps.Keys(firing)))
	}

	heal := inject(t, node, agentNode, unreadNode, stdout, victims)
	fake.SetPod(plegtest.NewPod("web", plegtest.Running("nginx")))
	eventually(t, patience, func() string {
		if fake.EmitExit(pleg.ContainerExit{ContainerID: "nginx", ExitCode: 137}) == 0 {
			return "nobody watches exits"
		}
		return ""
	})
	broken := plegtest.NewPod("broken", plegtest.Running("app"), plegtest.Running(""))
	fake.SetPod(broken)
	endGone()
	endLost()
	p.startWatch(t, exitsNode, noexits.address)
	earlyNode := proctest.CRIServer(t)
	earlyNode.Down()
	p.startWatch(t, earlyNode, early.address, "--wait")
	fired := make(map[string]bool)
	began := time.Now()
	eventually(t, 2*time.Minute, func() string {
		maps.Copy(fired, prom.firing())
		return missing(fired)
	})
	t.Logf("all fire after %v", time.Since(began).Round(time.Second))
	queries := slices.DeleteFunc(readDashboard(t).panelQueries("10s"), func(q query) bool {
		return slices.Contains(quiet, q.where) && len(prom.values(q)) == 0
	})
	eventually(t, patience, func() string {
		runContainer(t, unreadNode, busy) // some queries count events and pod lists
		return empty(prom, append(queries, kubernetesMixin...))
	})

	heal()
	healExits()
	fake.RemovePod(broken.ID)
	prom.reload(slices.DeleteFunc(targets, func(t target) bool { return t.instance == "gone" || t.instance == "lost" }))
	fake.ExitContainer("web", "nginx", 137, "Error")
	if err := earlyNode.Up(); err != nil {
		t.Fatal(err)
	}
	began = time.Now()
	eventually(t, 2*time.Minute, func() string {
		firing := prom.firing()
		maps.Copy(fired, firing)
		return strings.Join(slices.Sorted(maps.Keys(firing)), ", ")
	})
	t.Logf("all are resolved %v after the faults are healed", time.Since(began).Round(time.Second))
	for alert := range fired {
		// These alerts may fire too, because the stuck list takes as long as the runtime was
		// frozen.
		if !slices.Contains(wanted, alert) && alert != "PlegRelistSlow agent" && alert != "KubeletPlegDurationHigh agent" {
			t.Errorf("%s has fired, and should not have", alert)
		}
	}
}

// missing returns the wanted alerts that have not fired.
func missing(fired map[string]bool) string {
	return strings.Join(slices.DeleteFunc(slices.Clone(wanted), func(a string) bool { return fired[a] }), ", ")
}

// empty returns the names of the queries that return no values.
func empty(prom *promServer, queries []query) string {
	var none []string
	for _, q := range queries {
		if len(prom.values(q)) == 0 {
			none = append(none, q.where)
		}
	}
	return strings.Join(none, ", ")
}

// victims are the containers that faults hit, each in its own pod. A second container can run in
// the pod's sandbox. When it starts, the generator inspects the pod.
type victims struct{ hangs, fails, outgrows, crashes container }

type container struct{ sandbox, id string }

func startVictims(t *testing.T, node *criserver.Server) victims {
	t.Helper()
	pod := func(name string) container {
		sandbox := node.RunPod(criserver.PodConfig{Namespace: "shop", Name: name})
		return container{sandbox, runContainer(t, node, sandbox)}
	}
	return victims{pod("hangs"), pod("fails"), pod("outgrows"), pod("crashes")}
}

func runContainer(t *testing.T, node *criserver.Server, sandbox string) (id string) {
	t.Helper()
	id, err := node.RunContainer(sandbox, criserver.ContainerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// inject injects the faults that cause the alerts in wanted. heal ends the faults.
func inject(t *testing.T, node, agentNode, unreadNode *criserver.Server, stdout *valve, v victims) (heal func()) {
	t.Helper()
	unavailable := status.Error(codes.Unavailable, "a fault of the test")
	healers := []func(){
		node.Block("ContainerStatus", v.hangs.id),
		node.Fail("ContainerStatus", v.fails.id, unavailable),
		node.Fail("GetContainerEvents", "", unavailable),
	}
	node.BreakEventStreams(unavailable)
	runContainer(t, node, v.hangs.sandbox)
	runContainer(t, node, v.fails.sandbox)
	if err := node.ExitContainer(v.outgrows.id, 137, "OOMKilled"); err != nil {
		t.Fatal(err)
	}
	for id, n := v.crashes.id, 0; n < 15; n++ {
		successor, err := node.RestartContainer(id)
		if err != nil {
			t.Fatal(err)
		}
		id = successor
	}

	agentNode.Freeze()
	healers = append(healers, agentNode.Thaw)

	// 1000 pods produce more output than the pipe's 64 KiB and the channel's 1000 events can hold.
	stdout.Lock()
	healers = append(healers, stdout.Unlock)
	for range 1000 {
		runContainer(t, unreadNode, unreadNode.RunPod(criserver.PodConfig{}))
	}
	for _, method := range [...]string{"StreamPodSandboxes", "ListPodSandbox"} {
		healers = append(healers, unreadNode.Delay(method, "", 1500*time.Millisecond))
	}
	healed := false
	heal = func() {
		for _, h := range healers {
			if !healed {
				h()
			}
		}
		healed = true
	}
	// Cleanup calls heal before it ends the programs.
	t.Cleanup(heal)
	return heal
}
