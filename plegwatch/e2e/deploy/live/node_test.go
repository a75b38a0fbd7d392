package live

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/kubepleg/pleg/internal/e2e/kubelet"
	"github.com/kubepleg/pleg/internal/e2e/testnode"
	"github.com/kubepleg/pleg/plegwatch/e2e/deploy"
)

// patience is how long a test waits for an expected result before it fails.
const patience = 2 * time.Minute

// node is a container runtime with a released kubelet, without an API server.
type node struct {
	t         *testing.T
	daemon    *testnode.Daemon
	client    *testnode.Client
	dir       string
	manifests string
	address   string // the address at which the kubelet serves /pods
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{t: t, dir: t.TempDir()}
	n.manifests = filepath.Join(n.dir, "manifests")
	n.must(os.Mkdir(n.manifests, 0o755))
	n.daemon, n.client = testnode.ForTest(t)
	program, err := deploy.Build(t.Context(), n.dir)
	n.must(err)
	n.must(n.daemon.ImportProgram(t.Context(), image, program))
	n.address = kubelet.Start(t, kubelet.Options{
		Daemon: n.daemon, Client: n.client, Manifests: n.manifests, Dir: n.dir, NodeName: nodeName,
		Changes: map[string]any{"fileCheckFrequency": "1s"},
	})
	return n
}

func (n *node) must(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

// run makes the kubelet run a pod as a static pod.
func (n *node) run(pod *corev1.Pod) {
	n.t.Helper()
	pod.TypeMeta.APIVersion, pod.TypeMeta.Kind = "v1", "Pod"
	text, err := yaml.Marshal(pod)
	n.must(err)
	path := filepath.Join(n.dir, pod.Name+".yaml")
	n.must(os.WriteFile(path, text, 0o600))
	n.must(os.Rename(path, n.manifest(pod.Name)))
}

func (n *node) manifest(name string) string { return filepath.Join(n.manifests, name+".yaml") }

// runShell makes the kubelet run a pod with one container that executes a shell script.
func (n *node) runShell(name, script string) {
	n.t.Helper()
	pod := &corev1.Pod{}
	pod.Name, pod.Namespace = name, "default"
	pod.Spec = corev1.PodSpec{
		HostNetwork: true, RestartPolicy: corev1.RestartPolicyNever, AutomountServiceAccountToken: new(bool),
		TerminationGracePeriodSeconds: new(int64),
		Containers: []corev1.Container{{
			Name: "main", Image: testnode.BusyboxImage, ImagePullPolicy: corev1.PullNever,
			Command: []string{"sh", "-c", script},
		}},
	}
	n.run(pod)
}

// pod returns a static pod as the kubelet reports it. It returns an empty pod if the kubelet does
// not list it.
func (n *node) pod(name string) corev1.Pod {
	list := corev1.PodList{}
	_ = get("http://"+n.address+"/pods", &list) // an error means that the kubelet does not serve yet
	for i := range list.Items {
		if list.Items[i].Name == name+"-"+nodeName {
			return list.Items[i]
		}
	}
	return corev1.Pod{}
}

// get decodes the JSON answer of a URL, whatever its status code is.
func get(url string, into any) error {
	client := http.Client{Timeout: 5 * time.Second}
	resp, err := client.Get(url)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return json.NewDecoder(resp.Body).Decode(into)
}

// ready returns a condition for the function eventually: a pod is ready.
func (n *node) ready(name string) func() string {
	return func() string {
		pod := n.pod(name)
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
				return ""
			}
		}
		return fmt.Sprintf("pod %s: %s %s", name, pod.Status.Phase, describe(pod.Status.ContainerStatuses))
	}
}

func describe(v any) string {
	text, _ := json.Marshal(v)
	return string(text)
}

// eventually calls the function missing until it returns "". After the time patience, the test
// fails with the last text that missing returned.
func (n *node) eventually(what string, missing func() string) {
	n.t.Helper()
	last := ""
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if last = missing(); last == "" {
			return
		}
	}
	n.t.Fatalf("%s: not within %v: %s", what, patience, last)
}
