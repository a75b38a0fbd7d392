package kubelet

import (
	"flag"
	"os"
	"testing"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"

	"github.com/kubepleg/pleg/kubelet/differential/overcri"
)

// checks is how many random histories each test runs by default. A test then takes some seconds.
// The flag -rapid.checks changes the number.
const checks = "5000"

func TestMain(m *testing.M) {
	overcri.ServeIfAsked()
	klog.SetLogger(logr.Discard()) // the kubelet logs every failure that the tests cause
	if err := flag.Set("rapid.checks", checks); err != nil {
		panic(err)
	}
	flag.Parse() // after flag.Set, so that a value on the command line replaces the default
	os.Exit(m.Run())
}
