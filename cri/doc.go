// Package cri makes a pleg.Runtime of any container runtime that speaks CRI v1: containerd (also as
// a part of k3s), CRI-O, and cri-dockerd.
//
//	runtime, err := cri.Connect(ctx, "") // or the address of a socket
//	if err != nil {
//		return err
//	}
//	defer runtime.Close()
//	generator := pleg.New(runtime)
//
// An agent that may start before its runtime uses [Dial] instead of Connect. Dial returns at once.
// Until the runtime answers, the generator is unhealthy, and the reason names the endpoint.
//
// CRI has no fields for a PID, a network namespace or the OCI specification.
// [Runtime.ContainerInfo] and [Runtime.SandboxInfo] return them.
//
// A container or sandbox belongs to the pod that the kubelet's label io.kubernetes.pod.uid names.
// Items without the label are skipped, unless [WithPodsByMetadata] is set.
//
// The package does not trust the runtime's answers. Bad data is skipped or read as unknown, counted
// in pleg_cri_bad_items_total by reason, and logged once for each reason. In a string that is not
// UTF-8, invalid bytes are read as U+FFFD. A call fails if its answer is not a protobuf message, if
// the list is not complete, or if the connection panics. A failed list removes no pod.
//
// # Calls
//
// A list of the whole node takes two calls, whatever the number of pods. An inspection makes one
// call for each sandbox of the pod and one for each container, except for containers that exited a
// while ago (see Exited containers).
//
//	operation                         RPCs
//	Connect                           1 Version
//	Dial                              none
//	full list                         1 StreamPodSandboxes, 1 StreamContainers
//	  without streaming lists         1 ListPodSandbox, 1 ListContainers; at first and every
//	                                  five minutes, 1 StreamPodSandboxes more
//	  the first, after NewRuntime     1 Version more
//	  or Dial
//	pod list (GetPod)                 1 ListPodSandbox, 1 ListContainers, filtered, in
//	                                  parallel
//	inspection of a pod               1 PodSandboxStatus per sandbox, and
//	                                  1 ContainerStatus per container, in parallel;
//	                                  none for an exited container whose status has
//	                                  settled
//	ContainerInfo, SandboxInfo        1 ContainerStatus, 1 PodSandboxStatus
//	event stream, each connection     2 Version, 1 GetContainerEvents; 1 Version more if
//	                                  the runtime ends it within a second. For containerd
//	                                  1.6 and 1.7: 1 Events/Subscribe instead, and, while
//	                                  full lists fail, 1 ContainerStatus when an unknown
//	                                  container starts
//	exit events, each connection      2 Version, 1 Events/Subscribe, which is containerd's
//	                                  and not CRI's; 1 Status if containerd's bundles are
//	                                  not where its socket is. For CRI-O: 1 Version. With
//	                                  WithoutExitEvents: none
//	while containerd is away          to each pod's shim: 1 Task/Wait per container and
//	                                  sandbox, 1 Task/State
//
// A node of 110 pods, each with two containers and a sandbox, costs 2 calls per list and 332 calls
// at the start. If a container changes, its pod costs 3 more calls, or 2 if the other container
// exited long ago.
//
// # On the wire
//
// The package makes no other calls, and none of its calls changes anything. Each call uses the
// content type application/grpc without a suffix: CRI-O closes a connection if its first call uses
// another content type. The package adds no metadata; a caller's context or WithDialOptions may add
// some. After a reconnection, any call may be the first. A stream of events or of exits always
// begins with Version.
//
// # Exit events
//
// A runtime knows of an exit before CRI shows it. containerd first runs runc, unmounts, and writes
// to the disk, which takes 40 to 70 ms on a quiet machine. While one of these steps is stuck, CRI
// shows the dead container as running. WatchContainerExits reports exits earlier. It uses each of
// these sources, called witnesses, that is available:
//
//	events      /tasks/exit of containerd's own stream of events, on the same socket (1.6 and
//	            later, k3s too).
//	exit_files  the files that CRI-O's conmon writes into container_exits_dir
//	            ([WithExitsDir]). They include files from before the watch, because
//	            CRI-O removes a file when it has handled the exit. This process must
//	            be able to read them. The files of virtual machines contain no code
//	            and are only hints.
//	shim        containerd's shims, one process for each pod. A shim outlives containerd and
//	            serves its task API on a socket. The containers are found by their bundles in
//	            containerd's state directory, also right after the start of this process: see
//	            [WithStateDir]. Only root may read bundles and open the sockets.
//
// The witnesses exit_files and shim report exits even while the runtime is down. The package asks
// the shims only while containerd is away: its stream has ended or was not accepted within two
// seconds, or a full list takes two seconds. The shims also report earlier exits, unless containerd
// has deleted the container. The calls to the shims end when the stream is back and a full list
// that began ten seconds later has succeeded. Each further outage doubles this delay, up to an
// hour, because a call that is given up costs memory: a shim of containerd 1.6 and 1.7 keeps a
// little memory for each such call until the container ends. A failure of one shim affects only the
// shim's pod.
//
// The reason of an exit, such as OOMKilled, comes only with CRI's status. DescribeRuntime names the
// active witnesses, and says why others are not active, or not for all containers.
//
// ctr can run a command in a container with the container's own ID. The package recognizes the exit
// of such a command by its PID, if it can read the bundle, which contains the container's PID.
//
// containerd shows code 255 and the reason Unknown for a container that ended while containerd was
// away. CRI-O shows code -1 and no FinishedAt if no exit file exists, because conmon was killed or
// the node lost power. In both cases, the status sets EndUnknown. The generator then uses the end
// that a witness or an earlier status has reported.
//
// # Labels
//
// The labels, the annotations and the runtime handler of a pod are those of its newest sandbox.
// They are empty if no sandbox is listed. Every sandbox and container keeps its own labels and
// annotations: all that the runtime lists, including the kubelet's io.kubernetes.*. If labels
// change, the next list returns a new *pleg.Pod; the previous *pleg.Pod keeps the old labels.
//
// A program that makes pods over CRI sets these, as the kubelet does:
//
//	label io.kubernetes.pod.uid        of each sandbox and container; without it, they are skipped
//	label io.kubernetes.pod.name, label io.kubernetes.pod.namespace
//	                                   without them, the names in the sandbox's metadata
//	label io.kubernetes.container.name without it, the name in the container's metadata
//	annotation io.kubernetes.container.restartCount
//	                                   decimal; without it, 0
//	annotation io.kubernetes.container.hash
//	                                   hexadecimal; without it, 0
//
// The number of labels and annotations is not limited, but each list reads all their bytes. A list
// fails only if a message exceeds 64 MiB or the runtime's own limit; GetPod can still list other
// pods. [WithAnnotations] keeps only the annotations that you need. Logs, errors and metrics never
// contain labels or annotations, except the kubelet's names of pod and container.
//
// # Exited containers
//
// A runtime may learn late how a container ended: containerd may report "Error" first and
// "OOMKilled" a moment later, without a change in the list. So for ten seconds after an inspection
// first saw the container exited, every GetPodStatus asks for its status. Then the status has
// settled. From then on, GetPodStatus asks only if a list shows the container in another state,
// because Docker can start it again. After an exit whose reason is not Completed, the generator
// asks again two seconds later.
//
// # The cost of a list
//
// The Runtime compares a container's bytes with the previous list, and decodes them only if they
// differ. If nothing in a pod changed, the list returns the previous *pleg.Pod again. Every field
// is compared, including fields that must not change according to the API. Labels and annotations
// come in random order, so the sums of their 64-bit hashes are compared; this misses one change in
// 2^64. The comparison needs a client that passes call options on to gRPC. With another client, or
// after a change of the runtime's name, all items are decoded.
//
// Full lists are streamed if the runtime supports it (containerd 2.4, CRI-O 1.36), so that they may
// exceed one message. If the runtime answers Unimplemented, the list is completed with plain calls,
// and streaming is tried again:
//
//   - after five minutes, or when the runtime's version changes;
//   - if streaming has worked before, after a second, and then with a delay that doubles up to five
//     minutes;
//   - at the next list whenever a plain list fails.
//
// DescribeRuntime reports how the last list was completed.
//
// # Bounds
//
// A list of sandboxes or of containers may contain 100,000 items, and a message 64 MiB. A streamed
// list may contain 256 MiB, and 1,000 messages without an item. A list beyond these bounds fails,
// and removes no pod. The first hundred items that belong to no pod are kept; the others are
// decoded and counted in each list. For each kind of bad data, the first five items of a list are
// logged. Errors and logs contain at most 4 KiB of a text from the runtime. An error that was cut
// keeps its status code and the errors that it wraps, but not the details of its status.
//
// # Metrics
//
// A Runtime is a prometheus.Collector, which the generator registers. It counts and times every
// call in the kubelet's kubelet_runtime_operations_total,
// kubelet_runtime_operations_duration_seconds and kubelet_runtime_operations_errors_total, by
// operation_type. The package's values differ from the kubelet's in three ways:
//
//   - A call that the caller cancelled is not an error, unless the cause is a deadline.
//   - Unimplemented is not an error for streaming lists and events.
//   - The call for an event stream is counted when the runtime has accepted the stream. Its
//     duration is the time until the acceptance.
//
// # Concurrency
//
//   - All methods may be called from several goroutines at once.
//   - Full lists run one at a time; all other calls run concurrently.
//   - Every method that calls the runtime returns when its context ends, and leaves no goroutine
//     behind. Between calls only the connection has goroutines, which Close ends.
//   - A returned pod or status is never modified again. The caller must not modify it either: the
//     next list may return it again.
package cri
