package cri_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/clock"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest/criserver"
)

// calls are the calls that the library makes, as SECURITY.md lists them. They only read.
var calls = []string{
	"Version", "ListPodSandbox", "ListContainers", "StreamPodSandboxes", "StreamContainers", "PodSandboxStatus",
	"ContainerStatus", "GetContainerEvents",
}

// otherCalls are calls of APIs other than CRI, and CRI calls that are needed only for exits. They
// change nothing. With WithoutExitEvents, none of them is made.
var otherCalls = []string{
	"/containerd.services.events.v1.Events/Subscribe", "/runtime.v1.RuntimeService/Status",
	"containerd.task.v2.Task/State", "containerd.task.v2.Task/Wait",
	"containerd.task.v3.Task/State", "containerd.task.v3.Task/Wait",
}

// The library's code names only the methods in calls and otherCalls, and contains no generated
// client. Only two files of this package make calls.
func TestCodeNamesOnlyReadingCalls(t *testing.T) {
	forbidden := map[string]bool{"NewRuntimeServiceClient": true, "NewImageServiceClient": true}
	callers := map[string]bool{"Invoke": true, "NewStream": true, "NewClientStream": true}
	readers := map[string]bool{}
	for _, method := range otherCalls {
		readers[method] = true
	}
	for _, name := range calls {
		readers["/runtime.v1.RuntimeService/"+name] = true
	}
	for _, client := range []reflect.Type{
		reflect.TypeFor[runtimeapi.RuntimeServiceClient](), reflect.TypeFor[runtimeapi.ImageServiceClient](),
	} {
		for i := range client.NumMethod() {
			// The CRI call Status only reads. Its name is not forbidden, because many Go types have a
			// method or a field called Status.
			if name := client.Method(i).Name; !slices.Contains(calls, name) && name != "Status" {
				forbidden[name] = true
			}
		}
	}
	if !forbidden["StopContainer"] || !forbidden["ExecSync"] || !forbidden["PullImage"] {
		t.Fatalf("these are not the methods of CRI: %v", forbidden)
	}
	// These folders contain fake runtimes for tests, and example programs.
	others := map[string]bool{
		"plegtest": true, "examples": true, "internal/test/scenario": true, "internal/timetable": true,
	}
	files, named := 0, map[string]bool{}
	walk := func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		path = filepath.ToSlash(path)
		if entry.IsDir() {
			_, err := os.Stat(filepath.Join("..", path, "go.mod"))
			if path != "." && (err == nil || strings.HasPrefix(entry.Name(), ".") || others[path]) {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		files++
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, filepath.Join("..", path), nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.SelectorExpr:
				if forbidden[n.Sel.Name] ||
					callers[n.Sel.Name] && path != "cri/client.go" && path != "cri/taskexits.go" {
					t.Errorf("%v: %s", set.Position(n.Pos()), n.Sel.Name)
				}
			case *ast.KeyValueExpr:
				// TestInspectionWithoutInfo shows that the calls in status.go are not verbose by default.
				if key, ok := n.Key.(*ast.Ident); ok && key.Name == "Verbose" && path != "cri/info.go" && path != "cri/status.go" {
					t.Errorf("%v: a verbose status has the containers' environment", set.Position(n.Pos()))
				}
			case *ast.BasicLit:
				text, err := strconv.Unquote(n.Value)
				if err == nil && methodName.MatchString(text) {
					named[text] = true
				}
			}
			return true
		})
		return nil
	}
	if err := fs.WalkDir(os.DirFS(".."), ".", walk); err != nil {
		t.Fatal(err)
	}
	if files < 50 || !maps.Equal(named, readers) {
		t.Errorf("in %d files, these methods are named: %v", files, slices.Sorted(maps.Keys(named)))
	}
}

// methodName matches the gRPC names of the runtimes' methods. It also matches the beginning of such
// a name, because code might append the rest.
var methodName = regexp.MustCompile(`^/?(runtime|containerd)\.[\w.]+/\w*$`)

// A generator makes only these calls, even if pods start, die and are removed, and the runtime
// restarts.
func TestMakesOnlyReadingCalls(t *testing.T) {
	s, r := serverAndRuntime(t)
	generator := pleg.NewGenericPLEG(r, pleg.DefaultChannelCapacity, 50*time.Millisecond, pleg.NewCache(),
		clock.RealClock{}, pleg.WithLogger(logr.Discard()))
	events := generator.Subscribe(t.Context())
	generator.Start(t.Context())
	t.Cleanup(generator.Stop)
	await := func(kind pleg.PodLifeCycleEventType) {
		t.Helper()
		for deadline := time.After(time.Minute); ; {
			select {
			case e := <-events:
				if e.Type == kind {
					return
				}
			case <-deadline:
				t.Fatalf("no %s", kind)
			}
		}
	}
	for range 2 {
		sandbox := s.RunPod(criserver.PodConfig{Name: "web"})
		await(pleg.ContainerStarted) // of the sandbox
		id, err := s.RunContainer(sandbox, criserver.ContainerConfig{Name: "app"})
		if err != nil {
			t.Fatal(err)
		}
		await(pleg.ContainerStarted)
		if err := s.ExitContainer(id, 1, "Error"); err != nil {
			t.Fatal(err)
		}
		await(pleg.ContainerDied)
		if err := s.RemovePodSandbox(sandbox); err != nil {
			t.Fatal(err)
		}
		await(pleg.ContainerRemoved)
		s.Down()
		if err := s.Up(); err != nil {
			t.Fatal(err)
		}
	}
	_ = generator.Relist(t.Context())
	generator.Stop()
	waitFor(t, func() bool { // calls that Stop has cancelled may still arrive
		known := s.Calls("Subscribe") + s.Calls("Status")
		for _, method := range calls {
			known += s.Calls(method)
		}
		return known > 0 && known == s.Calls("")
	})
}

// SECURITY.md lists the calls in the variable calls.
func TestSecurityListsTheCalls(t *testing.T) {
	text, err := os.ReadFile("../SECURITY.md")
	if err != nil {
		t.Fatal(err)
	}
	list := "`" + strings.Join(calls, "`, `") + "`"
	list += ". Without `cri.WithoutExitEvents` it also makes containerd's `Events/Subscribe`"
	if !strings.Contains(strings.ReplaceAll(string(text), "\n", " "), list) {
		t.Errorf("SECURITY.md does not say: %s", list)
	}
}
