// Package criserver is a CRI v1 runtime in the process of a test, on a unix socket. A [Server]
// behaves like containerd or CRI-O, and simulates the pods that the test runs. It refuses and
// reports every call that would change something. With [WithPrograms] it accepts changes, and its
// containers run programs of the test, so that a test can run an agent that runs pods. Like
// containerd and CRI-O, it accepts a unique prefix of an ID.
//
// A test of an agent runs a pod and connects:
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
// Everything in this package may be used from several goroutines at once. The server uses a real
// socket; inside a testing/synctest bubble it needs [WithListener]. Stop waits for every goroutine
// that the server started.
package criserver
