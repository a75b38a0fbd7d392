package e2e_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// recorder records what a CRI runtime shows: its events, lists and statuses. It replaces each ID by
// a name, and each time by a description of the time. So two runtimes can be compared.
type recorder struct {
	client runtimeapi.RuntimeServiceClient
	// ignored are the fields that are left out.
	ignored map[protoreflect.FullName]string
	// shuffled is true if the runtime may send the events of one container in any order.
	shuffled bool
	// racy is true if a race decides two things: the order of one container's events, and the
	// states of the pod's containers in these events.
	racy bool

	names  map[string]string // ID → name, for all objects seen so far
	listed map[string]int64  // ID → created_at in the last list
	before map[string]int64  // object and field → time at the end of the last step
	now    map[string]int64  // object and field → time in the current call of look

	mu     sync.Mutex
	events []*runtimeapi.ContainerEventResponse // since the last step; guarded by mu
}

// statesInEvent are the fields of an event that describe the pod's other objects.
var statesInEvent = []protoreflect.FullName{
	"runtime.v1.ContainerEventResponse.containers_statuses",
	"runtime.v1.PodSandboxStatus.state",
}

func newRecorder(client runtimeapi.RuntimeServiceClient, ignored map[protoreflect.FullName]string,
	shuffled bool) *recorder {
	return &recorder{client: client, ignored: ignored, shuffled: shuffled,
		names: make(map[string]string), listed: make(map[string]int64)}
}

// follow reads an event stream until it ends.
func (r *recorder) follow(stream grpc.ServerStreamingClient[runtimeapi.ContainerEventResponse]) {
	for {
		e, err := stream.Recv()
		if err != nil {
			return // the test or the runtime has ended the stream
		}
		r.mu.Lock()
		r.events = append(r.events, e)
		r.mu.Unlock()
	}
}

// endStep ends a step. It drops the events, and stores the times for comparison in the next step.
func (r *recorder) endStep() {
	r.before = r.now
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = nil
}

// look returns the events since the last step, the lists and the statuses.
func (r *recorder) look(ctx context.Context) ([]string, error) {
	sandboxes, err := r.client.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return nil, err
	}
	containers, err := r.client.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	events := slices.Clone(r.events)
	r.mu.Unlock()
	for _, s := range sandboxes.Items {
		r.nameSandbox(s.Id, s.Metadata)
		r.listed[s.Id] = s.CreatedAt
	}
	for _, c := range containers.Containers {
		r.nameContainer(c.Id, c.Labels, c.Metadata)
		r.listed[c.Id] = c.CreatedAt
	}
	for _, e := range events {
		if s := e.PodSandboxStatus; s != nil {
			r.nameSandbox(s.Id, s.Metadata)
			for _, c := range e.ContainersStatuses {
				r.nameContainer(c.Id, c.Labels, c.Metadata)
			}
		}
	}

	r.now = make(map[string]int64)
	var shown []string
	show := func(what, id string, m proto.Message, err error) {
		line := what + " " + r.nameOf(id) + ": "
		if err != nil {
			line += status.Code(err).String()
		} else {
			line += r.text(m.ProtoReflect(), what+id, id)
		}
		shown = append(shown, line)
	}
	for _, s := range sandboxes.Items {
		show("sandbox", s.Id, s, nil)
		answer, err := r.client.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: s.Id})
		show("sandbox status", s.Id, answer, err)
	}
	for _, c := range containers.Containers {
		show("container", c.Id, c, nil)
		answer, err := r.client.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: c.Id})
		show("container status", c.Id, answer, err)
	}
	slices.Sort(shown)
	return append(r.eventLines(events), shown...), nil
}

// eventLines returns the events, sorted by sandbox and container. It sorts them because no runtime
// keeps an order between the events of different objects.
func (r *recorder) eventLines(events []*runtimeapi.ContainerEventResponse) []string {
	var lines []string
	slices.SortStableFunc(events, func(a, b *runtimeapi.ContainerEventResponse) int {
		if c := strings.Compare(r.nameOf(a.ContainerId), r.nameOf(b.ContainerId)); c != 0 || !r.shuffled && !r.racy {
			return c
		}
		return int(a.ContainerEventType) - int(b.ContainerEventType)
	})
	for _, e := range events {
		lines = append(lines, "event "+r.nameOf(e.ContainerId)+": "+r.text(e.ProtoReflect(), "", ""))
	}
	return lines
}

func (r *recorder) nameSandbox(id string, m *runtimeapi.PodSandboxMetadata) {
	r.names[id] = fmt.Sprint(m.Name, ".", m.Attempt)
	r.names[m.Uid] = "uid of " + m.Name
}

func (r *recorder) nameContainer(id string, labels map[string]string, m *runtimeapi.ContainerMetadata) {
	r.names[id] = fmt.Sprintf("%s/%s.%d", labels["io.kubernetes.pod.name"], m.Name, m.Attempt)
}

func (r *recorder) nameOf(id string) string {
	if name, ok := r.names[id]; ok {
		return name
	}
	return "unknown"
}

// text formats the fields that are set in a message. The argument key identifies the message when
// its times are compared; it is empty for an event. The argument id is the ID of the object.
func (r *recorder) text(m protoreflect.Message, key, id string) string {
	var fields []protoreflect.FieldDescriptor
	for f := range m.Range {
		_, out := r.ignored[f.FullName()]
		if out || r.racy && key == "" && slices.Contains(statesInEvent, f.FullName()) {
			continue
		}
		fields = append(fields, f)
	}
	slices.SortFunc(fields, func(a, b protoreflect.FieldDescriptor) int { return int(a.Number()) - int(b.Number()) })
	var parts []string
	for _, f := range fields {
		v := m.Get(f)
		part := string(f.Name()) + ":"
		switch {
		case f.Message() != nil && f.Message().FullName() == "runtime.v1.ContainerStatus" && f.IsList():
			var statuses []*runtimeapi.ContainerStatus
			for i := range v.List().Len() {
				statuses = append(statuses, v.List().Get(i).Message().Interface().(*runtimeapi.ContainerStatus))
			}
			part += r.briefly(statuses)
		case f.IsMap():
			entries := make(map[string]string)
			for k, v := range v.Map().Range {
				entries[k.String()] = r.value(v.String())
			}
			var all []string
			for _, k := range slices.Sorted(maps.Keys(entries)) {
				all = append(all, k+"="+entries[k])
			}
			part += "[" + strings.Join(all, " ") + "]"
		case f.IsList():
			part += fmt.Sprint(v.List().Len())
		case f.Message() != nil:
			part += "{" + r.text(v.Message(), key, id) + "}"
		case f.Enum() != nil:
			part += string(f.Enum().Values().ByNumber(v.Enum()).Name())
		case f.Kind() == protoreflect.Int64Kind && (strings.HasSuffix(part, "_at:") || f.Name() == "timestamp"):
			part += r.times(key, id, string(f.Name()), v.Int())
		default:
			part += r.value(v.String())
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, " ")
}

// value formats a value. It replaces an ID by its name.
func (r *recorder) value(s string) string {
	if name, ok := r.names[s]; ok {
		return name
	}
	return s
}

// times describes the time t: whether it is set, and how it has changed since the last step. For a
// created_at, times also describes whether t differs from the list.
func (r *recorder) times(key, id, field string, t int64) string {
	text := "set"
	if t < 0 {
		text = "before 1970"
	}
	if key == "" {
		return text
	}
	if listed := r.listed[id]; field == "created_at" && t != listed {
		text += map[bool]string{true: ", later than listed", false: ", earlier than listed"}[t > listed]
	}
	key += field
	r.now[key] = t
	if last, ok := r.before[key]; ok && last != t && field != "timestamp" {
		text += map[bool]string{true: ", moved on", false: ", moved back"}[t > last]
	}
	return text
}

// briefly formats the names, states and exit codes of containers.
func (r *recorder) briefly(statuses []*runtimeapi.ContainerStatus) string {
	var all []string
	for _, s := range statuses {
		all = append(all, fmt.Sprint(r.nameOf(s.Id), " ", s.State, " ", s.ExitCode))
	}
	slices.Sort(all)
	return "(" + strings.Join(all, ", ") + ")"
}
