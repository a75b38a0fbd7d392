package criserver

import "github.com/kubepleg/pleg/internal/serverconfig"

// controls implements the methods of a server that only this repository uses.
type controls struct{ *Server }

func init() {
	serverconfig.NewOption = func(own serverconfig.Config) any { return Option(func(c *config) { c.own = own }) }
	serverconfig.Of = func(server any) serverconfig.Controls { return controls{server.(*Server)} }
}
