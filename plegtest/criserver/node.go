package criserver

import (
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/clock"
)

// The labels and annotations that the kubelet sets.
const (
	labelPodName       = "io.kubernetes.pod.name"
	labelPodNamespace  = "io.kubernetes.pod.namespace"
	labelPodUID        = "io.kubernetes.pod.uid"
	labelContainerName = "io.kubernetes.container.name"

	annotationHash         = "io.kubernetes.container.hash"
	annotationRestartCount = "io.kubernetes.container.restartCount"
	annotationPorts        = "io.kubernetes.container.ports"
	annotationGracePeriod  = "io.kubernetes.pod.terminationGracePeriod"
	annotationMessagePath  = "io.kubernetes.container.terminationMessagePath"
	annotationMessageFrom  = "io.kubernetes.container.terminationMessagePolicy"
	annotationConfigSeen   = "kubernetes.io/config.seen"
	annotationConfigSource = "kubernetes.io/config.source"
)

// containerPorts is the value of annotationPorts for each container.
const containerPorts = `[{"name":"http","containerPort":8080,"protocol":"TCP"},` +
	`{"name":"metrics","containerPort":9090,"protocol":"TCP"}]`

// In CRI-O's statuses, a container's creation time is the end of its creation. In CRI-O's lists,
// the time is earlier by crioCreation, and each restart of CRI-O adds crioRestart to it.
const (
	crioCreation = 50 * time.Millisecond
	crioRestart  = 60 * time.Microsecond
)

// zeroTime is the value that runtimes in Go send for a time that was never set.
var zeroTime = time.Time{}.UnixNano()

// PodConfig describes a pod sandbox. The zero value creates a new pod with default values.
type PodConfig struct {
	// UID is the pod's UID. If it is empty, the server generates a UID.
	UID types.UID
	// Name is the pod's name. The default is "pod-<number>".
	Name string
	// Namespace is the pod's namespace. The default is "default".
	Namespace string
	// IPs are the sandbox's addresses, with the primary address first. If IPs is nil, the server
	// chooses an address. If it is an empty slice, the sandbox gets no address.
	IPs []string
	// Labels and Annotations are set in addition to the kubelet's own.
	Labels, Annotations map[string]string
	// RuntimeHandler is the runtime handler. Empty means the default handler.
	RuntimeHandler string

	// given is the configuration that a client sent; nil if the server adds the kubelet's labels and
	// annotations.
	given *runtimeapi.PodSandboxConfig
}

// ContainerConfig describes a container.
type ContainerConfig struct {
	// Name is the container's name. The default is "app".
	Name string
	// Image is the container's image. The default is "registry.example/<name>:1".
	Image string
	// Labels and Annotations are set in addition to the kubelet's own.
	Labels, Annotations map[string]string
	// PID is the PID of the first process, as the verbose status and containerd's own events report
	// it. 0 selects a PID that no real process can have.
	PID int

	given *runtimeapi.ContainerConfig // like PodConfig.given
}

// simSandbox is a simulated sandbox. The messages in its fields item and status are never modified,
// only replaced.
type simSandbox struct {
	config     PodConfig
	attempt    uint32
	createdAt  int64
	ready      bool
	containers []*simContainer // ordered by creation
	place      int             // index in node.sandboxes

	item   *runtimeapi.PodSandbox
	status *runtimeapi.PodSandboxStatus
}

// simContainer is a simulated container. The messages in its fields item and status are never
// modified, only replaced.
type simContainer struct {
	config                           ContainerConfig
	attempt                          uint32
	state                            runtimeapi.ContainerState
	createdAt, startedAt, finishedAt int64
	listedAt                         int64 // the creation time that lists report
	exitCode                         int32
	reason, message                  string
	outOfMemory                      bool // true if OOMKill was called for the container
	exitLost                         bool // true if the runtime was down and missed the exit code
	sandbox                          *simSandbox
	place                            int      // index in node.containers
	process                          *process // nil if the container runs no program

	item   *runtimeapi.Container
	status *runtimeapi.ContainerStatus
}

// simPod contains the counters of a pod. If a sandbox of the pod is replaced, the counters go on.
type simPod struct {
	sandboxes   int
	nextAttempt uint32
	restarts    map[string]uint32 // next attempt, by container name
}

// node contains the state of the simulated runtime.
type node struct {
	clock clock.Clock // set once by newNode
	crio  bool        // set once by newNode

	mu sync.Mutex
	// The fields below are guarded by mu.

	// rand generates IDs. order generates the order of lists. They are separate, so that the number
	// of lists does not change later IDs.
	rand, order *rand.Rand

	sandboxes  []*simSandbox
	containers []*simContainer
	down       bool // true after a call of Down, until a call of Up
	byID       map[string]*simSandbox
	ctrByID    map[string]*simContainer
	pods       map[types.UID]*simPod
	podCount   int
	ipCount    uint32

	// encodedSandboxes and encodedContainers cache the encoded lists. A list that is out of date is
	// nil. The field changes counts the changes so far.
	encodedSandboxes, encodedContainers []byte
	changes                             uint64
}

func newNode(c clock.Clock, crio bool, r, order *rand.Rand) *node {
	return &node{
		clock:   c,
		crio:    crio,
		rand:    r,
		order:   order,
		byID:    make(map[string]*simSandbox),
		ctrByID: make(map[string]*simContainer),
		pods:    make(map[types.UID]*simPod),
	}
}

func (n *node) idLocked() string {
	return fmt.Sprintf("%016x%016x%016x%016x", n.rand.Uint64(), n.rand.Uint64(), n.rand.Uint64(), n.rand.Uint64())
}

// now returns the time in nanoseconds, at least 1, because the API requires times above 0.
func (n *node) now() int64 {
	return max(1, n.clock.Now().UnixNano())
}

// podLocked returns the counters of a pod. It creates them for a new pod.
func (n *node) podLocked(uid types.UID) *simPod {
	pod := n.pods[uid]
	if pod == nil {
		pod = &simPod{restarts: make(map[string]uint32)}
		n.pods[uid] = pod
	}
	return pod
}

func (n *node) addSandboxLocked(config PodConfig) *simSandbox {
	if config.UID == "" {
		a, b := n.rand.Uint64(), n.rand.Uint64()
		config.UID = types.UID(fmt.Sprintf("%08x-%04x-4%03x-a%03x-%012x", a>>32, a>>16&0xffff, a&0xfff,
			b>>48&0xfff, b&0xffffffffffff))
	}
	pod := n.podLocked(config.UID)
	if config.Name == "" {
		n.podCount++
		config.Name = fmt.Sprint("pod-", n.podCount)
	}
	if config.Namespace == "" {
		config.Namespace = "default"
	}
	if config.IPs == nil {
		n.ipCount++
		config.IPs = []string{fmt.Sprintf("10.%d.%d.%d", 88+n.ipCount>>16&0x7f, n.ipCount>>8&0xff,
			n.ipCount&0xff)}
	}
	now := n.now()
	labels, annotations := maps.Clone(config.Labels), maps.Clone(config.Annotations)
	if config.given == nil {
		labels = with(config.Labels, map[string]string{labelPodName: config.Name,
			labelPodNamespace: config.Namespace, labelPodUID: string(config.UID)})
		annotations = with(config.Annotations, map[string]string{
			annotationConfigSeen:   time.Unix(0, now).UTC().Format(time.RFC3339Nano),
			annotationConfigSource: "api",
		})
	}
	if n.crio {
		labels = with(labels, map[string]string{labelContainerName: "POD"})
	}
	s := &simSandbox{config: config, attempt: pod.nextAttempt, createdAt: now, ready: true, place: len(n.sandboxes)}
	pod.sandboxes++
	pod.nextAttempt++
	s.item = &runtimeapi.PodSandbox{
		Id: n.idLocked(),
		Metadata: &runtimeapi.PodSandboxMetadata{Name: config.Name, Uid: string(config.UID),
			Namespace: config.Namespace, Attempt: s.attempt},
		CreatedAt:      s.createdAt,
		Labels:         labels,
		Annotations:    annotations,
		RuntimeHandler: config.RuntimeHandler,
	}
	n.sandboxes = append(n.sandboxes, s)
	n.byID[s.item.Id] = s
	n.showSandboxLocked(s)
	return s
}

// with copies the map given into the map defaults, and returns defaults.
func with(given, defaults map[string]string) map[string]string {
	maps.Copy(defaults, given)
	return defaults
}

// showSandboxLocked replaces the messages of a sandbox to show its present state.
func (n *node) showSandboxLocked(s *simSandbox) {
	state := runtimeapi.PodSandboxState_SANDBOX_NOTREADY
	network := &runtimeapi.PodSandboxNetworkStatus{}
	if s.ready {
		state = runtimeapi.PodSandboxState_SANDBOX_READY
	}
	if s.ready || n.crio {
		network = networkStatus(s.config.IPs)
	}
	old := s.item
	s.item = &runtimeapi.PodSandbox{
		Id: old.Id, Metadata: old.Metadata, State: state, CreatedAt: old.CreatedAt,
		Labels: old.Labels, Annotations: old.Annotations, RuntimeHandler: old.RuntimeHandler,
	}
	s.status = &runtimeapi.PodSandboxStatus{
		Id: old.Id, Metadata: old.Metadata, State: state, CreatedAt: old.CreatedAt, Network: network,
		Labels: old.Labels, Annotations: old.Annotations, RuntimeHandler: old.RuntimeHandler,
	}
	n.changedLocked()
}

func (n *node) addContainerLocked(s *simSandbox, config ContainerConfig) *simContainer {
	if config.Name == "" {
		config.Name = "app"
	}
	if config.Image == "" {
		config.Image = "registry.example/" + config.Name + ":1"
	}
	restarts := n.pods[s.config.UID].restarts
	c := &simContainer{config: config, attempt: restarts[config.Name], createdAt: n.now(), sandbox: s,
		place: len(n.containers)}
	c.listedAt = c.createdAt
	if n.crio {
		c.listedAt = max(1, c.createdAt-crioCreation.Nanoseconds())
	}
	restarts[config.Name]++
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(config.Name + "\x00" + config.Image)) // writing to a hash cannot fail
	labels, annotations := maps.Clone(config.Labels), maps.Clone(config.Annotations)
	if config.given == nil {
		labels = with(config.Labels, map[string]string{
			labelPodName: s.config.Name, labelPodNamespace: s.config.Namespace, labelPodUID: string(s.config.UID),
			labelContainerName: config.Name,
		})
		annotations = with(config.Annotations, map[string]string{
			annotationHash:         strconv.FormatUint(uint64(hash.Sum32()), 16),
			annotationRestartCount: strconv.FormatUint(uint64(c.attempt), 10),
			annotationPorts:        containerPorts,
			annotationGracePeriod:  "30",
			annotationMessagePath:  "/dev/termination-log",
			annotationMessageFrom:  "File",
		})
	}
	imageID := fmt.Sprintf("sha256:%064x", hash.Sum32())
	c.item = &runtimeapi.Container{
		Id:           n.idLocked(),
		PodSandboxId: s.item.Id,
		Metadata:     &runtimeapi.ContainerMetadata{Name: config.Name, Attempt: c.attempt},
		Image:        &runtimeapi.ImageSpec{Image: imageID, UserSpecifiedImage: config.Image},
		ImageRef:     imageID, // as in containerd, only the status contains the real reference
		ImageId:      imageID,
		Labels:       labels,
		Annotations:  annotations,
	}
	s.containers = append(s.containers, c)
	n.containers = append(n.containers, c)
	n.ctrByID[c.item.Id] = c
	n.showContainerLocked(c)
	return c
}

// showContainerLocked replaces the messages of a container to show its present state.
func (n *node) showContainerLocked(c *simContainer) {
	old := c.item
	c.item = &runtimeapi.Container{
		Id: old.Id, PodSandboxId: old.PodSandboxId, Metadata: old.Metadata,
		Image: old.Image, ImageRef: old.ImageRef, ImageId: old.ImageId,
		State: c.state, CreatedAt: c.listedAt, Labels: old.Labels, Annotations: old.Annotations,
	}
	c.status = &runtimeapi.ContainerStatus{
		Id: old.Id, Metadata: old.Metadata, State: c.state, CreatedAt: c.createdAt,
		StartedAt: c.startedAt, FinishedAt: c.finishedAt,
		ExitCode: c.exitCode, Reason: c.reason, Message: c.message,
		Image:    &runtimeapi.ImageSpec{Image: c.config.Image, UserSpecifiedImage: c.config.Image},
		ImageRef: c.config.Image + "@" + old.ImageId, ImageId: old.ImageId,
		Labels: old.Labels, Annotations: old.Annotations,
		LogPath: fmt.Sprintf("/var/log/pods/%s_%s/%s/%d.log",
			c.sandbox.config.Namespace, c.sandbox.config.Name, c.config.Name, c.attempt),
	}
	n.changedLocked()
}

// restarted applies the changes that a restart of the runtime causes.
func (n *node) restarted() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range n.containers {
		if n.crio {
			c.listedAt += crioRestart.Nanoseconds()
		}
		if c.exitLost {
			c.exitLost, c.finishedAt = false, n.now()
		}
		n.showContainerLocked(c)
	}
	n.down = false
}

func (n *node) goDown() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.down = true
}

// removeContainerLocked removes a container. The last container of the unordered slice takes the
// removed container's place.
func (n *node) removeContainerLocked(c *simContainer) {
	last := n.containers[len(n.containers)-1]
	n.containers[c.place], last.place = last, c.place
	n.containers = n.containers[:len(n.containers)-1]
	delete(n.ctrByID, c.item.Id)
	c.sandbox.containers = slices.DeleteFunc(c.sandbox.containers, func(o *simContainer) bool { return o == c })
	n.changedLocked()
}

func (n *node) removeSandboxLocked(s *simSandbox) {
	last := n.sandboxes[len(n.sandboxes)-1]
	n.sandboxes[s.place], last.place = last, s.place
	n.sandboxes = n.sandboxes[:len(n.sandboxes)-1]
	delete(n.byID, s.item.Id)
	n.changedLocked()
	pod := n.pods[s.config.UID]
	if pod.sandboxes--; pod.sandboxes == 0 {
		delete(n.pods, s.config.UID)
	}
}

// changedLocked drops the encoded lists, because they are out of date.
func (n *node) changedLocked() {
	n.changes++
	n.encodedSandboxes, n.encodedContainers = nil, nil
}

func (n *node) sandboxLocked(id string) (*simSandbox, error) {
	return findLocked(n, "sandbox", n.byID, id)
}

func (n *node) containerLocked(id string) (*simContainer, error) {
	return findLocked(n, "container", n.ctrByID, id)
}

// findLocked finds an object by its ID or by a unique prefix of the ID, as containerd and CRI-O do.
func findLocked[T any](n *node, kind string, byID map[string]*T, id string) (*T, error) {
	if found := byID[id]; found != nil {
		return found, nil
	}
	var found *T
	for whole, candidate := range byID {
		if id == "" || !strings.HasPrefix(whole, id) {
			continue
		}
		if found != nil {
			code := codes.Unknown
			if n.crio {
				code = codes.NotFound
			}
			return nil, status.Errorf(code, "an error occurred when try to find %s %q: "+
				"Multiple IDs found with provided prefix: %s", kind, id, id)
		}
		found = candidate
	}
	if found == nil {
		return nil, status.Errorf(codes.NotFound, "an error occurred when try to find %s %q: not found", kind, id)
	}
	return found, nil
}

// wholeIDsLocked replaces unique prefixes of IDs by the whole IDs. Other texts stay as they are.
func (n *node) wholeIDsLocked(sandbox, container string) (wholeSandbox, wholeContainer string) {
	if s, err := n.sandboxLocked(sandbox); err == nil {
		sandbox = s.item.Id
	}
	if c, err := n.containerLocked(container); err == nil {
		container = c.item.Id
	}
	return sandbox, container
}

func networkStatus(ips []string) *runtimeapi.PodSandboxNetworkStatus {
	if len(ips) == 0 {
		return &runtimeapi.PodSandboxNetworkStatus{}
	}
	network := &runtimeapi.PodSandboxNetworkStatus{Ip: ips[0]}
	for _, ip := range ips[1:] {
		network.AdditionalIps = append(network.AdditionalIps, &runtimeapi.PodIP{Ip: ip})
	}
	return network
}
