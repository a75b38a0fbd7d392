package testnode

import "testing"

// ForTest starts a runtime and returns it with a client. Both end with the test. If the test fails,
// ForTest logs the end of the runtime's log.
func ForTest(t testing.TB) (*Daemon, *Client) {
	t.Helper()
	daemon, err := Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the runtime's log ends:\n%s", daemon.Log(40))
		}
		if err := daemon.Close(); err != nil {
			t.Error("taking the runtime down:", err)
		}
	})
	client, err := daemon.Client()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return daemon, client
}
