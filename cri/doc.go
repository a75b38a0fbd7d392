// Package cri makes a pleg.Runtime of any container runtime that speaks CRI v1:
// containerd, alone or in k3s, CRI-O, cri-dockerd.
//
//	runtime, err := cri.Connect(ctx, "") // or the address of a socket
//	if err != nil {
//		return err
//	}
//	defer runtime.Close()
//	generator := pleg.NewGenericPLEG(runtime, pleg.DefaultChannelCapacity, pleg.DefaultRelistPeriod,
//		pleg.NewCache(), clock.RealClock{})
//
// An agent that may start before its runtime uses [Dial] instead of Connect: it returns at
// once, and the generator is unhealthy, with the endpoint in the reason, until the runtime
// answers.
//
// What CRI has in no field, such as a PID, a network namespace or the OCI specification, is in
// the runtime's verbose status: see [Runtime.ContainerInfo] and [Runtime.SandboxInfo].
//
// The package only makes calls that read. A container or sandbox belongs to the pod
// that the kubelet's label io.kubernetes.pod.uid names; items without the label belong
// to no pod and are skipped, unless [WithPodsByMetadata] is set. Answers of the runtime are not
// trusted: bad data is skipped or read as unknown, counted in pleg_cri_bad_items_total by reason, and logged once for
// each reason. In a string that is not UTF-8, bad bytes are read as U+FFFD, and no other item
// is affected. An answer that is not a protobuf message, and a list that is not complete, are
// errors, and remove nothing. If the connection panics, the call has failed, and the error names
// it.
//
// # Calls
//
// A list of the whole node takes two calls, whatever the number of pods. An inspection
// takes one call for each sandbox of the pod, and one for each container but those that
// exited a while ago (see Exited containers).
//
//	operation                         RPCs
//	Connect                           1 Version
//	Dial                              none
//	idle relist                       1 StreamPodSandboxes, 1 StreamContainers
//	  of a runtime without streams    1 ListPodSandbox, 1 ListContainers
//	first relist                      the same; 1 Version more after NewRuntime or
//	                                  Dial; without streams 1 StreamPodSandboxes more,
//	                                  and 1 more every five minutes
//	relist of one pod (GetPod)        1 ListPodSandbox, 1 ListContainers, filtered, in
//	                                  parallel
//	inspection of a pod               1 PodSandboxStatus per sandbox, and
//	                                  1 ContainerStatus per container, in parallel;
//	                                  none for an exited container whose status has
//	                                  settled
//	ContainerInfo, SandboxInfo        1 ContainerStatus, 1 PodSandboxStatus
//	event stream, each connection     2 Version, 1 GetContainerEvents; 1 Version more if
//	                                  the runtime ends it within a second; of containerd
//	                                  1.6 and 1.7 1 Events/Subscribe instead
//	exit events, each connection      2 Version, 1 Events/Subscribe, which is containerd's
//	                                  and not CRI's; of CRI-O 1 Version; with
//	                                  WithoutExitEvents none
//
// A node of 110 pods with two containers and a sandbox each costs 2 calls per relist,
// 332 calls at the start, and 3 calls more for each pod of which a container changes,
// or 2 if the other container exited long ago.
//
// # On the wire
//
// The calls above are all that a runtime ever gets from this package, and none of them
// changes anything. Each has the content-type application/grpc, without a suffix: CRI-O
// closes a connection whose first call has another. The package adds no metadata of its
// own; what a caller's context or WithDialOptions adds is the caller's. After the
// connection was restored, any call may be its first. Only a stream of events or of exits
// begins with Version, which is answered before the stream is opened.
//
// # Exit events
//
// A runtime knows of an exit before CRI shows it: containerd runs runc, unmounts and writes
// to the disk first, which takes some 40 to 70 ms on a quiet machine. If one of these
// gets stuck, CRI shows a dead container as running for as long. WatchContainerExits reports
// exits earlier, from each of these witnesses that there is:
//
//	events      /tasks/exit of containerd's own stream of events, on the same socket (1.6 and
//	            later, k3s too). /tasks/start says which process is the container's.
//	exit_files  the files that CRI-O's conmon writes into container_exits_dir
//	            ([WithExitsDir]), which the process must be able to read.
//	exit_json   exit.json in a container's bundle, which the runc shim of containerd 2.4
//	            writes. The bundles are in the folder of containerd's socket, as they are
//	            unless containerd's state is configured to be elsewhere; only root may read them.
//	pidfd       a pidfd of the container's first process, on Linux 6.15 and later, if this
//	            process sees the host's PIDs (hostPID). The PID comes from /tasks/start or, once
//	            for each container, from a verbose status. A process that is in no cgroup with
//	            the container's ID, as that of a virtual machine, is refused.
//
// The last three need no runtime: they report exits while it is down, too. An exit is final, so
// it may be believed before a list shows it. The reason, such as OOMKilled, comes with CRI's
// status only. DescribeRuntime names the witnesses that are active, and says why others are not.
//
// containerd shows 255 and the reason Unknown for a container that ended while containerd was
// away. If a witness or an earlier status has shown the end, the status has that code, reason and
// time instead. What is kept for this is bounded by the containers that lists show. If nobody saw
// the end, the status is containerd's.
//
// # Labels
//
// A pod has the labels, the annotations and the runtime handler of its newest sandbox, and
// none if no sandbox of it is listed; every sandbox and container has its own labels and
// annotations. They are all that the runtime lists, with the kubelet's io.kubernetes.*, by
// which items are grouped, among them. Each list shows them as they are; a pod that was
// returned before keeps those that it had.
//
// There may be any number of them. A million labels of one sandbox, for example, are
// decoded once, and then cost each list the time to walk through their bytes. Only a
// message of more than 64 MiB, or of more than the runtime sends, fails the list; other pods can
// still be listed by themselves. [WithAnnotations] keeps only the annotations that you need.
// No log, error or metric shows labels and annotations, except the kubelet's own, which name
// the pod and the container.
//
// # Exited containers
//
// A runtime may learn late how a container ended: containerd may report "Error" first and
// "OOMKilled" a moment later, without a change in the list. So for ten seconds after an
// inspection first saw the container exited, by the clock of the options, every GetPodStatus
// asks for its status again. Then the status has settled: it is held, and not asked for,
// until the full list no longer shows the container, or a list shows it in another state
// (Docker can start it again). The generator asks again two seconds after an exit with
// another reason than Completed.
//
// # The cost of a list
//
// A container that did not change is not decoded: its bytes, in the buffers that gRPC
// received, are compared with those that it was decoded from. A pod in which nothing changed
// is the same *pleg.Pod as before. Every field is compared, even those that the API forbids a
// runtime to change. Labels and annotations come in random order, so the sums of their 64-bit
// hashes are compared, which misses one change in 2^64. The comparison needs a client that
// passes call options on to gRPC; with any other client all items are decoded, and the pods
// are the same. If the runtime's name changes, all items are decoded again, because the name
// is part of every container ID.
//
// Full lists are streamed if the runtime supports it (containerd 2.4, CRI-O 1.36), so
// that they may exceed one message. If the runtime answers Unimplemented, the list is
// completed with plain calls, which costs one call more, and streaming is retried:
//
//   - after five minutes, or when the runtime's version changes;
//   - if streaming has worked before, after a second, and then with a delay that doubles
//     up to five minutes;
//   - at the next list whenever a plain list fails.
//
// DescribeRuntime reports how the last list was completed.
//
// # Bounds
//
// A list, of sandboxes or of containers, may have 100,000 items and, streamed, 256 MiB and 1,000
// messages without an item; a message may have 64 MiB. Beyond that the list fails, and removes
// nothing. The first hundred
// items that belong to no pod are held; the others are decoded and counted in each list. Of
// each kind of bad data the first five items of a list are logged. The runtime's texts in
// errors, and so in logs, are cut at 4 KiB. Such an error keeps its status code and what it
// wraps, but not the details of its status.
//
// # Metrics
//
// A Runtime is a prometheus.Collector, which the generator registers. It counts and
// times every call in the kubelet's kubelet_runtime_operations_total,
// kubelet_runtime_operations_duration_seconds and
// kubelet_runtime_operations_errors_total, by operation_type. It differs from the kubelet
// as follows: a call that the caller cancelled is not an error, unless its cause is a deadline;
// Unimplemented for streaming lists or events is an answer and not an error; an event stream
// counts when the runtime has accepted it, and its duration is the time until then.
//
// # Concurrency
//
//   - All methods may be called from several goroutines at once.
//   - Full lists run one at a time; everything else runs beside them.
//   - Every method that calls the runtime returns when its context ends, and leaves no
//     goroutine behind. Between calls there are no goroutines except those of the
//     connection, which Close ends.
//   - A returned pod or status is never modified again. The caller must not modify it
//     either: the next list may return it again.
package cri
