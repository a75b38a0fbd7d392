package compare

import (
	"math/rand/v2"
	"time"
)

const (
	atOnceAlive = 8               // how many of the short-lived pods exist at the same time
	restEvery   = 50              // number of lives between two pauses of the faults, for a comparison
	restLimit   = 3 * time.Minute // limit for the comparison; crashed containers may first be in back-off
)

// comeAndGo adds and removes pods while containers crash and inspections block or fail. The kubelet
// and the runtime are killed and restarted. Whenever these faults pause, the kubelet's status must
// soon match the runtime.
func (n *node) comeAndGo() {
	n.start(true)
	// The fixed seed gives every kubelet the same faults.
	random := rand.New(rand.NewPCG(1, 2))
	var alive []string
	for i := range *lives {
		alive = append(alive, n.addSleeper(n.next()))
		if len(alive) > atOnceAlive {
			oldest := random.IntN(3)
			n.remove(alive[oldest])
			alive = append(alive[:oldest], alive[oldest+1:]...)
		}
		n.revive()
		n.disturb(i, alive[random.IntN(len(alive))])
		n.wait(time.Duration(100+random.IntN(500)) * time.Millisecond)
		if (i+1)%restEvery == 0 || i+1 == *lives {
			n.rest(len(n.names) + len(alive))
		}
	}
	for _, name := range alive {
		n.remove(name)
	}
	n.await("agrees with the runtime", n.agrees(len(n.names)))
	n.judgeSuccessors()
}

// disturb injects the faults of a turn.
func (n *node) disturb(turn int, pod string) {
	switch {
	case turn%50 == 44:
		n.t.Logf("turn %d: the runtime is killed", turn)
		n.must(n.daemon.Kill())
		n.must(n.daemon.Restart(n.t.Context()))
		n.proxy.Reconnect()
		return
	case turn%30 == 28:
		n.t.Logf("turn %d: the kubelet is killed", turn)
		n.killKubelet()
		n.launch()
		return
	}
	running, _ := n.listContainers() // the error is ignored: the runtime may have just been killed
	c, runs := running[pod]
	if !runs {
		return // the container has not started yet, or has crashed
	}
	switch {
	case turn%20 == 19:
		n.proxy.Release()
		n.proxy.Fail(c.id, c.sandbox)
	case turn%20 == 9:
		n.proxy.Release()
		n.proxy.Block(c.id, c.sandbox)
	case turn%5 == 2:
		c.pid, _ = n.client.Pid(n.t.Context(), c.id)
		_, _ = n.kill(c) // ignored: the container may have ended
	}
}

// rest ends the faults. Then it measures how long the kubelet and the runtime take until they show
// the same containers. The parameter count is the expected number of pods.
func (n *node) rest(count int) {
	const kind = "pods come and go under restarts and faults: rest → `/pods` says what containerd says"
	n.proxy.Release()
	n.revive()
	began := time.Now()
	agrees := n.agrees(count)
	shown, as := n.awaitFor(restLimit, func(shown map[string]state) bool {
		n.revive()
		return agrees(shown)
	})
	running, err := n.listContainers()
	n.tally(kind, as, "want %d pods; the kubelet shows %v, the runtime runs %v (%v)", count, shown, running, err)
	if as {
		n.add(kind, time.Since(began))
	}
}
