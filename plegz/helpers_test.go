package plegz_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
	"github.com/kubepleg/pleg/plegz"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

// node is a fake runtime with a generator and its handler. It runs in a synctest bubble.
type node struct {
	*plegtest.Runtime
	http.Handler
	t     *testing.T
	g     *pleg.GenericPLEG
	cache *pleg.PodCache
}

// newNode starts a generator on a fake runtime. The generator runs until the test ends.
func newNode(t *testing.T, opts ...plegz.Option) *node {
	t.Helper()
	runtime := plegtest.NewRuntime()
	n := newIdleNode(t, runtime, runtime, opts...)
	n.g.Start(t.Context())
	synctest.Wait()
	return n
}

// newIdleNode creates a generator for runtime, but does not start it. runtime must pass its calls
// to fake.
func newIdleNode(t *testing.T, runtime pleg.Runtime, fake *plegtest.Runtime, opts ...plegz.Option) *node {
	t.Helper()
	n := &node{Runtime: fake, t: t, cache: pleg.NewCache()}
	n.EmitOnChange(true)
	n.g = pleg.New(runtime, pleg.WithCache(n.cache),
		pleg.WithLogger(logr.Discard()))
	n.Handler = plegz.Handler(n.g, append(opts, plegz.WithNodeName("node-7"))...)
	t.Cleanup(n.g.Stop)
	t.Cleanup(n.Heal)
	return n
}

// pass advances the fake time by d, and waits until all due work is done.
func (n *node) pass(d time.Duration) {
	time.Sleep(d) // advances the fake time
	synctest.Wait()
}

// setPod adds a pod with the UID namespace/name to the runtime.
func (n *node) setPod(namespace, name string, containers ...*pleg.Container) types.UID {
	p := plegtest.NewPod(types.UID(namespace+"/"+name), containers...)
	p.Namespace, p.Name = namespace, name
	n.SetPod(p)
	return p.ID
}

// setPods adds running pods to the runtime. count is their number.
func (n *node) setPods(count int) {
	for i := range count {
		n.setPod("team", fmt.Sprintf("pod-%04d", i), plegtest.Running(fmt.Sprintf("container-%04d", i)))
	}
	n.pass(2 * time.Second)
}

// request returns a GET request that comes from this machine.
func request(target string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, target, nil)
	r.RemoteAddr, r.Host = "127.0.0.1:50000", "localhost:9100"
	return r
}

// get returns the handler's response to a GET request.
func (n *node) get(target string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	n.ServeHTTP(w, request(target))
	return w
}

// state contains the fields of the JSON that the tests read.
type state struct {
	Time                                 time.Time
	Level, Sentence, Position            string
	Version                              string
	Links                                []string
	StartedAt, AwaySince, RecordingSince time.Time
	Notes                                []string
	Health                               pleg.HealthReport
	Conditions                           []plegz.PastCondition
	Witnesses                            []struct {
		Witness         string
		Active          bool
		Exits, Refusals int
	}
	Full        bool
	GoneThrough uint64
	Pods        []viewedPod
	Events      []struct {
		Number               uint64
		Pod, Container       string
		Event, Reason, Cause string
		ExitCode             *int
	}
	Samples []struct {
		RelistAge, Relist, Inspection *float64
		OldestCall                    float64
		CallsInFlight                 int
	}
}

type viewedPod struct {
	UID, Namespace, Name, State, Error string
	CreatedAt                          time.Time
	IPs                                []string
	Restarts                           int
	Gone                               uint64
	Containers, Sandboxes              []viewedLife
	Labels, Annotations                map[string]string
}

type viewedLife struct {
	ID, Name, State, Reason, Message string
	ExitCode                         *int
	Unconfirmed                      bool
	FinishedAt, RemovedAt            time.Time
	Gone                             uint64
}

// state returns the handler's JSON answer.
func (n *node) state() state {
	n.t.Helper()
	return decode(n.t, n.get("/?format=json").Body.Bytes())
}

func decode(t *testing.T, b []byte) (s state) {
	t.Helper()
	if err := json.Unmarshal(b, &s); err != nil {
		t.Fatalf("%v in:\n%s", err, b)
	}
	return s
}

func (n *node) subscribers() int { return n.g.HealthReport().Subscribers }
