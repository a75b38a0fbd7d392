package cri

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	netutils "k8s.io/utils/net"

	"github.com/kubepleg/pleg"
)

// callsPerPod is how many calls the inspection of one pod makes at once, for sandboxes and
// containers together. With 8, a pod of a sandbox and up to seven containers takes one round trip.
// The inspection of a pod of twenty containers takes 5.6 ms with 8, 9.8 ms with 4, and 4.1 ms with
// 16 (BenchmarkGetPodStatus). More calls would help large pods only, and would slow down the
// inspections of other pods by the generator's other workers.
const callsPerPod = 8

var errNilStatus = errors.New("the answer has no status")

// errOtherID is returned if the runtime answers a call with another object of the same kind.
var errOtherID = errors.New("the answer is about another one")

// GetPodStatus inspects a pod: it makes a PodSandboxStatus call for each sandbox and a
// ContainerStatus call for each container, up to eight in parallel. A sandbox or container that the
// runtime no longer knows is left out.
//
// For ten seconds after an inspection first showed the exit of a container, each GetPodStatus asks
// for the container's status. Then the status has settled. GetPodStatus returns the settled status
// until a list no longer shows the container, or shows it in another state. The package
// documentation explains the reason.
//
// Container statuses are sorted by creation time, newest first. Statuses with the same container
// name are sorted by attempt.
//
// IPs are the addresses of the newest sandbox, the primary address first. IPs is empty if that
// sandbox is not ready or is on the host's network, or if an address cannot be parsed.
//
// If a call fails, and its object is not gone, the error names the call and the object. The status
// is then partial: it does not contain the sandboxes and containers whose calls have failed.
func (r *Runtime) GetPodStatus(ctx context.Context, pod *pleg.Pod) (*pleg.PodStatus, error) {
	if pod == nil {
		return nil, errors.New("cri: GetPodStatus: the pod is nil")
	}
	version, err := r.knownVersion(ctx)
	if err != nil {
		return nil, err
	}
	in := inspection{
		runtime:     r,
		runtimeName: version.name,
		pod:         pod,
		sandboxes:   make([]*runtimeapi.PodSandboxStatus, len(pod.Sandboxes)),
		infos:       make([]*Info, len(pod.Sandboxes)),
		containers:  make([]*pleg.Status, len(pod.Containers)),
	}
	err = in.run(ctx)
	return in.status(ctx), err
}

// inspection is the inspection of one pod. Each call writes the element of its own sandbox or
// container. If an object is gone, its element stays nil.
type inspection struct {
	runtime     *Runtime
	runtimeName string
	pod         *pleg.Pod
	sandboxes   []*runtimeapi.PodSandboxStatus
	infos       []*Info // of the sandboxes; nil without WithInfo
	containers  []*pleg.Status
}

// run makes the calls of the inspection.
func (in *inspection) run(ctx context.Context) error {
	group := in.runtime.newCallGroup(ctx, callsPerPod)
	group.tolerated, group.independent = in.isNotFound, true
	for i, s := range in.pod.Sandboxes {
		// Inspect a sandbox even if it is not ready, because its network may still change.
		if s != nil {
			in.askSandbox(group, i, s)
		}
	}
	for i, c := range in.pod.Containers {
		if c == nil {
			continue
		}
		if c.State == pleg.ContainerStateExited {
			if held := in.runtime.held.exitedStatus(c.ID.ID, in.runtimeName); held != nil {
				in.containers[i] = held
				continue
			}
		} else {
			in.runtime.held.forgetExit(c.ID.ID)
		}
		in.askContainer(group, i, c)
	}
	return group.wait()
}

func (in *inspection) askSandbox(group *callGroup, i int, s *pleg.Container) {
	of := target{podUID: in.pod.ID, kind: "sandbox", id: s.ID.ID}
	group.start(rpcPodSandboxStatus, of, func(ctx context.Context) error {
		var codec utf8Codec
		resp, err := in.runtime.client.podSandboxStatus(ctx,
			&runtimeapi.PodSandboxStatusRequest{PodSandboxId: s.ID.ID, Verbose: in.runtime.opts.info}, grpc.ForceCodecV2(&codec))
		if err != nil {
			return err
		}
		if resp.GetStatus() == nil {
			return errNilStatus
		}
		if err := in.checkID(ctx, resp.GetStatus().GetId(), sandboxes, s); err != nil {
			return err
		}
		if _, known := sandboxState(resp.GetStatus().GetState()); !known {
			codec.found = codec.found.with(badState)
		}
		info, found := in.runtime.opts.inspectedInfo(s.ID.ID, resp.GetInfo())
		in.runtime.badObject(ctx, found|codec.found, in.object(sandboxes, s))
		if in.infos[i] = info; info != nil {
			info.SandboxID = info.ID
		}
		in.sandboxes[i] = resp.GetStatus()
		if codec.used { // if not, the client made the message and may still use it
			of := in.sandboxes[i]
			of.Labels = shared(of.Labels, s.Labels)
			of.Annotations = shared(in.runtime.opts.keptAnnotations(of.Annotations), s.Annotations)
		}
		return nil
	})
}

func (in *inspection) askContainer(group *callGroup, i int, c *pleg.Container) {
	r := in.runtime
	of := target{podUID: in.pod.ID, kind: "container", name: c.Name, id: c.ID.ID}
	group.start(rpcContainerStatus, of, func(ctx context.Context) error {
		asked := r.opts.clock.Now()
		var codec statusCodec
		resp, err := r.client.containerStatus(ctx,
			&runtimeapi.ContainerStatusRequest{ContainerId: c.ID.ID, Verbose: r.opts.info}, grpc.ForceCodecV2(&codec))
		if err != nil {
			return err
		}
		if resp.GetStatus() == nil {
			return errNilStatus
		}
		if err := in.checkID(ctx, resp.GetStatus().GetId(), containers, c); err != nil {
			return err
		}
		converted, found := containerStatus(resp.GetStatus(), c, reading{in.runtimeName, &r.opts})
		converted.StopSignal = codec.stopSignal
		info, foundInfo := r.opts.inspectedInfo(c.ID.ID, resp.GetInfo())
		if info != nil {
			converted.Source = info
		}
		r.badObject(ctx, found|foundInfo|codec.found, in.object(containers, c))
		in.containers[i] = converted
		// If FinishedAt is zero, the runtime is still handling the exit. If the code is 255, the
		// runtime may still learn the real code.
		finished := converted.State == pleg.ContainerStateExited && !converted.FinishedAt.IsZero()
		if finished && converted.ExitCode != unknownCode {
			r.held.observeExited(c.ID.ID, converted, asked, r.opts.clock.Now())
		}
		return nil
	})
}

// checkID fails if the status has another ID than the container or sandbox that was asked about.
// CRI-O may answer with another container of the same name (cri-o#8884).
func (in *inspection) checkID(ctx context.Context, id string, k kind, asked *pleg.Container) error {
	if id == "" || id == asked.ID.ID {
		return nil
	}
	in.runtime.badObject(ctx, badSet(0).with(badOtherID), in.object(k, asked))
	return fmt.Errorf("%w: %s", errOtherID, id)
}

// isNotFound reports whether a call failed because its object is gone. An object may be removed
// between the list and the call, which is normal. For such a call, cri-dockerd returns Docker's
// error text without a gRPC code.
func (in *inspection) isNotFound(err error) bool {
	switch status.Code(err) {
	case codes.NotFound:
		return true
	case codes.Unknown:
		return in.runtimeName == dockerName && strings.Contains(err.Error(), "No such container")
	default:
		return false
	}
}

// status builds the pod's status from the answers.
func (in *inspection) status(ctx context.Context) *pleg.PodStatus {
	s := &pleg.PodStatus{
		ID:                in.pod.ID,
		Name:              in.pod.Name,
		Namespace:         in.pod.Namespace,
		SandboxStatuses:   make([]*runtimeapi.PodSandboxStatus, 0, len(in.sandboxes)),
		ContainerStatuses: make([]*pleg.Status, 0, len(in.containers)),
	}
	infos := make(map[string]*Info)
	active := "" // the ID of the newest sandbox, if it is ready
	for i, sandbox := range in.sandboxes {
		if sandbox == nil {
			continue
		}
		s.SandboxStatuses = append(s.SandboxStatuses, sandbox)
		if info := in.infos[i]; info != nil {
			infos[info.ID] = info
		}
		if i == 0 && sandbox.GetState() == runtimeapi.PodSandboxState_SANDBOX_READY {
			active = in.pod.Sandboxes[0].ID.ID
			ips, found := sandboxIPs(sandbox)
			in.runtime.badObject(ctx, found, in.object(sandboxes, in.pod.Sandboxes[0]))
			s.IPs = ips
		}
	}
	if len(infos) > 0 {
		s.Source = infos
	}
	type inspected struct {
		*pleg.Status
		listed *pleg.Container
	}
	var all []inspected
	for i, container := range in.containers {
		if container != nil {
			all = append(all, inspected{container, in.pod.Containers[i]})
		}
	}
	// cri-dockerd lists creation times in whole seconds; only its statuses show which container is
	// newer.
	sortNewestFirst(all, func(c inspected) age { return age{c.Name, c.CreatedAt, c.listed.Attempt, c.ID.ID} })
	for _, c := range all {
		s.ContainerStatuses = append(s.ContainerStatuses, c.Status)
		if active != "" && c.listed.PodSandboxID == active {
			s.ActiveContainerStatuses = append(s.ActiveContainerStatuses, c.Status)
		}
	}
	return s
}

// object describes a container or sandbox of the pod for the log.
func (in *inspection) object(k kind, c *pleg.Container) object {
	return object{
		kind: k, id: c.ID.ID,
		podUID: in.pod.ID, podName: in.pod.Name, podNamespace: in.pod.Namespace,
	}
}

// sandboxIPs returns the addresses of a sandbox, the primary address first. If an address cannot be
// parsed, sandboxIPs returns no addresses, as the kubelet does.
func sandboxIPs(s *runtimeapi.PodSandboxStatus) ([]string, badSet) {
	network := s.GetNetwork()
	var ips []string
	// A sandbox on the host's network has no address.
	if ip := network.GetIp(); ip != "" {
		ips = append(ips, ip)
	}
	for _, additional := range network.GetAdditionalIps() {
		ips = append(ips, additional.GetIp())
	}
	for _, ip := range ips {
		if netutils.ParseIPSloppy(ip) == nil {
			return nil, badSet(0).with(badIP)
		}
	}
	return ips, 0
}

// badObject counts and logs bad data in the answer to an inspection, in an event or in an exit.
func (r *Runtime) badObject(ctx context.Context, found badSet, of object) {
	if found == 0 {
		return
	}
	var tally badTally
	tally.add(found, 1)
	r.countBad(&tally)
	r.reportBad(ctx, found, of)
}

// containerStatus converts the status of a listed container by the kubelet's rules. StartedAt is
// zero if the container has not been started. FinishedAt, ExitCode, Reason and Message are set only
// if the container has exited.
func containerStatus(s *runtimeapi.ContainerStatus, listed *pleg.Container, by reading) (*pleg.Status, badSet) {
	var found badSet
	state, known := containerState(s.GetState())
	if !known {
		found = found.with(badState)
	}
	hash, ok := parseHash(s.GetAnnotations()[annotationHash])
	if !ok {
		found = found.with(badHash)
	}
	restarts, ok := parseRestartCount(s.GetAnnotations()[annotationRestartCount])
	if !ok {
		found = found.with(badRestartCount)
	}
	converted := &pleg.Status{
		ID:                  pleg.ContainerID{Type: by.runtimeName, ID: cmp.Or(s.GetId(), listed.ID.ID)},
		Name:                cmp.Or(s.GetLabels()[labelContainerName], s.GetMetadata().GetName(), listed.Name),
		State:               state,
		CreatedAt:           unixNano(s.GetCreatedAt()),
		Image:               s.GetImage().GetImage(),
		ImageID:             imageID(s.GetImageId(), s.GetImageRef()),
		ImageRef:            s.GetImageRef(),
		ImageRuntimeHandler: s.GetImage().GetRuntimeHandler(),
		Hash:                hash,
		RestartCount:        restarts,
		PodSandboxID:        listed.PodSandboxID,
		LogPath:             s.GetLogPath(),
		Labels:              shared(s.GetLabels(), listed.Labels),
		Annotations:         shared(by.opts.keptAnnotations(s.GetAnnotations()), listed.Annotations),
		Resources:           s.GetResources(),
		User:                s.GetUser(),
		Mounts:              s.GetMounts(),
	}
	if state != pleg.ContainerStateCreated {
		converted.StartedAt = unixNano(s.GetStartedAt())
	}
	if state == pleg.ContainerStateExited {
		converted.FinishedAt = unixNano(s.GetFinishedAt())
		converted.ExitCode = int(s.GetExitCode())
		converted.Reason = cutMessage(s.GetReason())
		converted.Message = cutMessage(s.GetMessage())
		converted.EndUnknown = endUnknown(converted)
	}
	return converted, found
}

// containerd reports this exit code and reason if a container ended while containerd was away.
const (
	unknownCode   = 255
	unknownReason = "Unknown"
)

// crioNoCode is the exit code that CRI-O reports if a container has no exit file: conmon was
// killed, or the node lost power.
const crioNoCode = -1

// endUnknown reports whether the runtime does not know how a container has ended. Programs do exit
// with 255, and on Windows with -1, so the code alone is not enough.
func endUnknown(s *pleg.Status) bool {
	return s.ExitCode == unknownCode && s.Reason == unknownReason || s.ExitCode == crioNoCode && s.FinishedAt.IsZero()
}

// shared returns the map listed if both maps are equal, so that only one of them stays in memory.
func shared(m, listed map[string]string) map[string]string {
	if maps.Equal(m, listed) {
		return listed
	}
	return m
}

// unixNano converts a time of the CRI. It returns the zero time for a time that was never set. For
// such a time, some runtimes send 0. CRI-O and cri-dockerd send the nanoseconds of Go's zero time,
// which overflow to a year before 1970.
func unixNano(ns int64) time.Time {
	if ns <= 0 {
		return time.Time{}
	}
	return time.Unix(0, ns)
}
