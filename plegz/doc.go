// Package plegz shows what a generator knows of its node, on an agent's debug port, in the
// manner of Kubernetes' z-pages: the health in one sentence, the pods with the lives of
// their containers on a time axis, the events as they come, the subscribers and how far
// behind they are.
//
//	mux.Handle("/debug/plegz/", plegz.Handler(generator))
//	mux.Handle("/healthz", plegz.Healthz(generator))
//
// # Formats
//
// The handler has one address and four forms of it. A browser gets the page, which is one
// HTML document without references to others; curl gets text. The query parameter format
// chooses: html, text, json, or stream, which is server-sent events of the same JSON.
// Without it the Accept header decides.
//
// The JSON is an object with
//
//	time            when it was made, as in RFC 3339
//	node            the node's name, of WithNodeName
//	version         the agent's name and version, of WithVersion
//	startedAt       when the handler was made, which is when the agent started
//	links           other addresses of the agent, of WithLinks
//	level           ok, warning or error
//	sentence        the health in one sentence
//	notes           what else is wrong, a sentence each
//	health          the pleg.HealthReport; its longest texts are cut, and of each of its
//	                lists the first 50 are there
//	awaySince       since when the runtime has answered nothing, or no list has succeeded; missing
//	                if neither is so
//	witnesses       the witnesses of exits of package cri: witness is the name, active whether it
//	                is at work, exits how many it was the first to report, refusals how many
//	                containers it could not watch
//	recordingSince  when the recording of history began
//	position        where in the history this is; the ID of a server-sent event
//	full            false if it has only what changed since an earlier position
//	goneThrough     everything whose gone is at most this is forgotten
//	pods            the pods by namespace and name, then those that are gone
//	events          the newest events, oldest first
//	samples         one a second, oldest first
//
// Of a pod it has uid, namespace, name, state, createdAt, removedAt, ips, runtimeHandler,
// restarts, observedAt (of its status), hangingSince, failures and error (of its
// inspection), gone, labels and annotations if WithLabels says so, and containers and
// sandboxes, newest first. Of each of those it has id,
// name, state, createdAt, startedAt, finishedAt, removedAt, exitCode, unconfirmed (only an
// exit event has told the end), reason, message, restarts, image and gone. The state of a
// pod is hung, failing, crashed, starting, running, completed, stopped or removed; that of a
// container is created, running, exited, unknown or removed.
// Of an event it has number, time, listedAt, podUID, namespace, pod, container, containerID,
// sandbox, event, exitCode, reason, restarts and cause. A sample has time, relistAge,
// oldestCall, relist and inspection, in seconds, and callsInFlight and backlog. What is
// missing is not known, or does not apply.
//
// # History
//
// The first request gets what is present. From then on a subscription with the name "plegz"
// records history: the containers and pods that are gone, the events and the samples. It ends
// ten minutes after the last request, or at Stop when no stream is open. Before it begins and
// after it has ended nothing runs and nothing is kept. History is bounded: see WithHistory.
//
// More requests cost the generator no more: its pods are read at most five times a second,
// its health report and the metrics once. Text and JSON are made once for all who ask before
// something changes, and all streams share what is sent.
//
// # Safety
//
// The handler only reads. It answers GET and HEAD; anything else is 405, a request with a
// body 413, and one with a query of more than 512 bytes 414. It answers requests of this
// machine only, unless WithRemoteAccess says otherwise: the remote address and the Host
// header must be loopback, or the listener a unix socket, and a request of another site's
// page is refused (403). To it, a proxy on this machine is this machine. It answers one
// path, at which it is registered; any other is 404. A test has a request of this machine from
// httptest.NewServer, or from httptest.NewRequest with the URL "http://localhost/" and the RemoteAddr
// "127.0.0.1:1". Labels and annotations are not shown
// unless WithLabels says so, and an environment never, as the library does not know any.
// Texts are cut after 1024 bytes, and of a pod's labels, annotations and addresses the
// first 50 are shown.
//
// Names, reasons and messages come from the runtime. The page puts them into the document
// as text only, and its Content-Security-Policy runs no script but the page's own; control
// characters and marks of direction are shown as escapes.
//
// At most 64 streams are open at once, and 64 other answers under way: one more is 503. A
// client that takes no data for ten seconds is disconnected, and one that takes more than a
// minute for an answer other than a stream. A client that reads nothing costs less than 100
// KiB on a node of 1,000 pods (TestClientMemory). How many connections there are, and how
// long their headers, is for the agent's http.Server: it should have a ReadHeaderTimeout, an
// IdleTimeout and a MaxHeaderBytes of some KiB. Its Shutdown waits for open streams, unless
// its BaseContext ends first.
//
// # Concurrency
//
// A handler may be used from several goroutines at once. It has at most one goroutine of
// its own, the recording one.
package plegz
