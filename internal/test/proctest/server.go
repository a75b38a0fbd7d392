package proctest

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/kubepleg/pleg/plegtest/criserver"
)

// SwitchesProtocols returns a handler that answers "101 Switching Protocols", and then sends
// nothing. The connection stays open until the test ends.
func SwitchesProtocols(t testing.TB) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		t.Cleanup(func() { conn.Close() })
		fmt.Fprint(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
		_ = rw.Flush()
	}
}

// CRIServer starts a CRI server, which stops when the test ends.
func CRIServer(t testing.TB, opts ...criserver.Option) *criserver.Server {
	t.Helper()
	s, err := criserver.Start(opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	return s
}
