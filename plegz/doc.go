// Package plegz serves a page of the node on an agent's debug port, in the manner of Kubernetes'
// z-pages. It has the generator's health in one sentence, the pods with their containers on a time
// axis, the events as they come, and the subscribers' number and backlog.
//
//	mux.Handle("/debug/plegz/", plegz.Handler(generator))
//	mux.Handle("/healthz", plegz.Healthz(generator))
//
// # Formats
//
// The handler has one path and four formats. The query parameter format selects html, text, json, or
// stream, which sends the same JSON as server-sent events. Without it the Accept header decides: a
// browser gets one HTML document that loads nothing else, and curl gets text.
//
// The JSON is an object with
//
//	time            when it was made, in RFC 3339
//	node            the node's name; see WithNodeName
//	version         the agent's name and version; see WithVersion
//	startedAt       when the handler was made, usually at the agent's start
//	links           other paths of the agent; see WithLinks
//	level           ok, warning or error
//	sentence        the health in one sentence
//	notes           other problems, in one sentence each
//	health          the pleg.HealthReport, with long texts cut, and only the first 50 items of
//	                each list
//	awaySince       since when the runtime has answered nothing, or no list has succeeded
//	witnesses       the witnesses of exits of package cri: witness is the name; active is true
//	                if it works; exits counts the exits that it was the first to report;
//	                refusals counts the containers that it could not watch
//	levels          the conditions that began with a new level, with time, level, sentence and notes,
//	                oldest first; missing if none is new
//	recordingSince  when the recording of history began
//	position        the position in the history; the ID of a server-sent event
//	full            false if it has only what changed since an earlier position
//	goneThrough     items whose gone is at most this number are forgotten
//	pods            the pods by namespace and name, then those that are gone
//	events          the newest events, oldest first
//	samples         one a second, oldest first
//
// A pod has uid, namespace, name, state, createdAt, removedAt, ips, runtimeHandler, restarts,
// observedAt (of its status), stuckSince, failures and error (of its inspection), and gone. It has
// labels and annotations if WithLabels is set. Its containers and sandboxes are newest first, and
// have id, name, state, createdAt, startedAt, finishedAt, removedAt, exitCode, unconfirmed, reason,
// message, restartCount, image and gone.
//
// The state of a pod is stuck, failing, crashed, starting, running, completed, stopped or removed.
// That of a container is created, running, exited, unknown or removed.
//
// An event has a number and the fields of Event. A sample has callsInFlight and backlog, and in seconds
// relistAge, oldestCall, relist and inspection. A missing field is unknown, or does not apply.
//
// # History
//
// A subscription with the name "plegz" records history: containers and pods that are gone, events and
// samples, and changes of level. It begins with the first request, and ends ten minutes after the last request, or at Stop
// if no stream is open. Without a recording nothing runs, and nothing is kept. WithRecording records
// all the time. WithHistory bounds the history, and WithPast adds what an earlier agent recorded.
//
// More requests cost the generator no more: its pods are read at most five times a second, and its
// health report and the metrics once. All requests between two changes get the same text or JSON, and
// all streams share what is sent.
//
// # Safety
//
// The handler only reads. It answers GET and HEAD on the path at which it is registered, and refuses
// other requests:
//
//   - 403 for a request from another machine, unless WithRemoteAccess is set, and for a request from a
//     page of another site. The remote address and the Host header must be loopback, or the listener
//     a unix socket. A proxy on this machine counts as this machine;
//   - 404 for another path, 405 for another method, 413 for a request with a body, and 414 for a
//     query of more than 512 bytes;
//   - 503 if 64 streams are open, or 64 other answers are in progress.
//
// In a test, httptest.NewServer sends requests from this machine. So does httptest.NewRequest with the
// URL "http://localhost/" and the RemoteAddr "127.0.0.1:1".
//
// The page does not have labels and annotations unless WithLabels is set, and never has the
// environment of containers. Texts are cut after 1024 bytes. Of a pod's labels, annotations and
// addresses the first 50 are included.
//
// Names, reasons and messages come from the runtime. The page inserts them as text only, and its
// Content-Security-Policy allows no script but the page's own. Control characters and marks of text
// direction are escaped.
//
// A client is disconnected if it reads nothing for ten seconds, or if an answer other than a stream
// takes more than a minute. On a node of 1,000 pods, a client that reads nothing costs less than 100
// KiB. The agent's http.Server must limit connections and headers: set ReadHeaderTimeout, IdleTimeout
// and a MaxHeaderBytes of some KiB. Its Shutdown waits for open streams, unless its BaseContext ends
// first.
//
// # Concurrency
//
// A handler may be used from several goroutines at once. It has at most one goroutine of its own,
// for recording.
package plegz
