// Package plegz serves a page of the node on an agent's debug port, in the manner of Kubernetes'
// z-pages. The page shows the generator's health in one sentence, the pods with their containers on
// a time axis, live events, and the number and backlog of subscribers.
//
//	mux.Handle("/debug/plegz/", plegz.Handler(generator))
//	mux.Handle("/healthz", plegz.Healthz(generator))
//
// # Formats
//
// The handler has one path and four formats. The query parameter format selects html, text, json or
// stream. A stream sends the same JSON as server-sent events. Without the parameter, the Accept
// header selects the format: a browser gets one HTML document that loads nothing else, and curl
// gets text.
//
// The JSON is an object with these fields:
//
//	time            when the answer was made, in RFC 3339
//	node            the node's name; see WithNodeName
//	version         the agent's name and version; see WithVersion
//	startedAt       when the handler was made, usually at the agent's start
//	links           other paths of the agent; see WithLinks
//	level           ok, warning or error
//	sentence        the health in one sentence
//	notes           other problems, in one sentence each
//	health          the pleg.HealthReport as in Healthz, with long texts cut, and only the first 50
//	                items of each list
//	awaySince       when the runtime stopped answering, or the last successful list began; without
//	                one, the first list
//	witnesses       package cri's witnesses of exits: witness is the name; active is true if
//	                the witness works; exits counts the exits that it reported first;
//	                refusals counts the containers that it could not watch
//	conditions      the health so far: conditions with time, level, sentence and notes, oldest
//	                first; missing if none is new
//	recordingSince  when the recording of history began
//	position        the position in the history; the ID of a server-sent event
//	full            false if the answer contains only changes since an earlier position
//	goneThrough     removed items whose field gone is at most this number are forgotten
//	pods            the pods by namespace and name, with removed pods last
//	events          the newest events, oldest first
//	samples         one for each second, oldest first
//
// A pod has uid, namespace, name, state, createdAt, removedAt, ips, runtimeHandler, restarts,
// observedAt (of its status), stuckSince, failures and error (of its inspection), and gone. It has
// labels and annotations if WithLabels is set. Its containers and sandboxes are newest first, and
// have id, name, state, createdAt, startedAt, finishedAt, removedAt, exitCode, unconfirmed, reason,
// message, restartCount, image and gone. If the runtime has forgotten how a container ended, finishedAt,
// exitCode and reason are those of WithPast, and message says so.
//
// The state of a pod is stuck, failing, crashed, starting, running, completed, unknown, stopped or
// removed.
// The state of a container is created, running, exited, unknown or removed.
//
// An event has a number and the fields of Event. A sample has callsInFlight and backlog. It also
// has relistAge, oldestCall, relist and inspection, in seconds. A missing field is unknown, or does
// not apply.
//
// # History
//
// A subscription with the name "plegz" records history: containers and pods that are gone, events,
// samples, and changes of the health. The subscription begins with the first request. If no stream
// is open, it ends ten minutes after the last request, and at Stop. After a Stop, it ends with the
// last stream. Without a recording nothing runs, and nothing is kept. WithRecording records all the
// time. WithHistory bounds the history, and WithPast adds what an earlier agent recorded.
//
// More requests do not cost the generator more. The handler reads the pods at most five times a
// second, and the health report and the metrics once a second. All requests between two changes get
// the same text or JSON, and all streams share the encoded data.
//
// # Safety
//
// The handler only reads. It answers GET and HEAD on the path at which it is registered, and
// refuses other requests:
//
//   - 403 for a request from another machine, unless WithRemoteAccess is set, and for a request
//     from a page of another site. A request is from this machine if its remote address and its
//     Host header are loopback, or if the listener is a unix socket. A proxy on this machine counts
//     as this machine;
//   - 404 for another path, 405 for another method, 413 for a request with a body, and 414 for a
//     query of more than 512 bytes;
//   - 503 if 64 streams are open, or 64 other answers are in progress.
//
// In tests, requests to an httptest.NewServer count as requests from this machine. A request of
// httptest.NewRequest counts too if its URL is "http://localhost/" and its RemoteAddr is
// "127.0.0.1:1".
//
// The page includes labels and annotations only if WithLabels is set. It never includes the
// environment of containers. Texts are cut after 1024 bytes. A pod's labels, annotations and
// addresses are cut to the first 50 of each.
//
// Names, reasons and messages come from the runtime. The page inserts them only as text, and its
// Content-Security-Policy allows only the page's own script. Control characters and text direction
// marks are escaped.
//
// The handler disconnects a client that reads nothing for ten seconds, or that takes more than a
// minute for an answer other than a stream. On a node of 1,000 pods, a client that reads nothing
// costs less than 100 KiB. The agent's http.Server must limit connections and headers: set
// ReadHeaderTimeout, IdleTimeout and a MaxHeaderBytes of some KiB. The server's Shutdown waits for
// open streams, unless the server's BaseContext ends first.
//
// # Concurrency
//
// A handler is safe for concurrent use. It runs at most one goroutine of its own, for recording.
package plegz
