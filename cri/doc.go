// Package cri makes a pleg.Runtime of any container runtime that speaks CRI v1:
// containerd, CRI-O, cri-dockerd.
//
//	runtime, err := cri.Connect(ctx, "") // or the address of a socket
//	if err != nil {
//		return err
//	}
//	defer runtime.Close()
//	generator := pleg.NewGenericPLEG(runtime, pleg.DefaultChannelCapacity, pleg.DefaultRelistPeriod, pleg.NewCache(), clock.RealClock{})
//
// Only calls that read are ever made. Containers and sandboxes belong to the pod
// that the kubelet's label io.kubernetes.pod.uid names; others are no pod's and are
// skipped. What a runtime answers is not trusted: what is bad in it is skipped or
// read as unknown, counted in pleg_cri_bad_items_total by reason, and logged once for
// each reason. An answer that is no message, and a list that is not complete, are
// errors, and remove nothing.
//
// # Calls
//
// A list of the whole node is two calls, whatever the number of pods; an inspection
// is one call for each sandbox of the pod and one for each container that is not
// known to have exited.
//
//	what                              RPCs
//	Connect                           1 Version
//	idle relist                       1 StreamPodSandboxes, 1 StreamContainers
//	  of a runtime without streams    1 ListPodSandbox, 1 ListContainers
//	first relist                      the same; 1 Version more after NewRuntime,
//	                                  1 StreamPodSandboxes more without streams, and
//	                                  so again after five minutes
//	relist of one pod (GetPod)        1 ListPodSandbox, 1 ListContainers, filtered
//	inspection of a pod               1 PodSandboxStatus a sandbox, and
//	                                  1 ContainerStatus a container, but none for one
//	                                  whose status was asked for 10 s after it was
//	                                  first seen exited
//	event stream, each connection     2 Version, 1 GetContainerEvents
//
// So a node of 110 pods with two containers and a sandbox each costs 2 calls a
// relist, 332 calls at first, and 3 calls more for each pod of which a container
// changes, 2 if the container exited before and another one changes.
//
// # The cost of a list
//
// A container that did not change is not decoded: its bytes are compared, where they
// came, with those that it was decoded from, and a pod in which nothing changed is the
// same *pleg.Pod. This is exact but for annotations, which the API forbids a runtime to
// change. It needs a client that passes call options on to gRPC; with another, lists
// are decoded, and the same pods come out.
//
// Full lists are streamed if the runtime can (containerd 2.4, CRI-O 1.36), so that they
// may exceed 16 MiB. If it answers Unimplemented, the list is completed with plain calls,
// which costs it one call more, and streaming is tried again: after five minutes, or
// when the runtime's version changes; if it has worked before, after a second, and then
// after twice as long each time up to five minutes; and at the next list whenever a
// plain list fails. DescribeRuntime says how the last list was completed.
//
// # Metrics
//
// A Runtime is a prometheus.Collector, which the generator registers. It counts and
// times every call in the kubelet's kubelet_runtime_operations_total,
// kubelet_runtime_operations_duration_seconds and
// kubelet_runtime_operations_errors_total, by operation_type, with these differences
// from the kubelet: calls that the caller took back are no errors; that there are no
// streaming lists, or no events, is an answer and no error; an event stream counts
// when the runtime has accepted it, and its duration is the time until then.
//
// # Concurrency
//
//   - All methods may be called from several goroutines at once.
//   - Full lists run one at a time; everything else runs beside them.
//   - Every method that calls the runtime returns when its context ends, and leaves no
//     goroutine behind. There are none between calls, but for those of the connection
//     until Close.
//   - What was handed out is never modified again, and must not be by the caller: the
//     next list hands it out again.
package cri
