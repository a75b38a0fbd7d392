package plegz_test

import (
	"context"
	"net"
	"net/http"
)

// contextWithLocal is a request's context, as a server makes it whose listener has an
// address.
func contextWithLocal(r *http.Request, local net.Addr) context.Context {
	return context.WithValue(r.Context(), http.LocalAddrContextKey, local)
}
