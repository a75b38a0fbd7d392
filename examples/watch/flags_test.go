package main

import (
	"flag"
	"strings"
	"testing"

	"github.com/kubepleg/pleg/cri"
)

func TestUsageNamesEveryFlag(t *testing.T) {
	newFlagSet(&flags{}).VisitAll(func(f *flag.Flag) {
		if !strings.Contains(usage, "\n  --"+f.Name+" ") {
			t.Errorf("the usage does not tell of --%s", f.Name)
		}
	})
}

func TestNode(t *testing.T) {
	for _, tt := range []struct{ flag, want string }{
		{"unix:///run/a.sock", "unix:///run/a.sock"},
		{autoEndpoint, ""}, // cri.Connect tries the usual ones
	} {
		endpoint, stop, err := flags{endpoint: tt.flag}.node()
		if err != nil || endpoint != tt.want {
			t.Errorf("%s: endpoint %q, %v; want %q", tt.flag, endpoint, err, tt.want)
			continue
		}
		stop()
	}
	endpoint, stop, err := flags{}.node()
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	r, err := cri.Connect(t.Context(), endpoint)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}
