// Package criserver provides a CRI v1 runtime in the test's process, on a unix socket. A [Server]
// behaves like containerd or CRI-O. The test starts and ends its simulated pods. The server refuses
// and records each call of a client that would change something. With [WithPrograms] it accepts
// such calls, and containers run Go functions of the test. A test can then run an agent that starts
// pods. Like containerd and CRI-O, the server accepts a unique prefix of an ID.
//
// A test of an agent runs a pod and connects to the server:
//
//	server, err := criserver.Start()
//	if err != nil {
//		t.Fatal(err)
//	}
//	defer server.Stop()
//	sandbox := server.RunPod(criserver.PodConfig{Name: "cart"})
//	app, err := server.RunContainer(sandbox, criserver.ContainerConfig{Name: "app"})
//	if err != nil {
//		t.Fatal(err)
//	}
//	runtime, err := cri.Connect(t.Context(), server.Endpoint())
//	if err != nil {
//		t.Fatal(err)
//	}
//	defer runtime.Close()
//	generator := pleg.New(runtime)
//	// …
//	err = server.ExitContainer(app, 137, "OOMKilled")
//
// # Concurrency
//
// Everything in this package is safe for concurrent use. The server uses a real socket; in a
// testing/synctest bubble it needs [WithListener]. Stop waits until all goroutines of the server
// have ended.
package criserver
