package manifest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/fsnotify/fsnotify"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/kubepleg/pleg/nodeagent/internal/runtime"
)

const (
	// settleTime is how long the directory must be unchanged before Run reads it, because a file
	// may be written in several steps.
	settleTime = 100 * time.Millisecond
	// rescanPeriod is how often Run reads the directory without a notification. retryPeriod is how
	// often Run tries to read an unreadable directory.
	rescanPeriod, retryPeriod = 20 * time.Second, time.Second
	// maxFile is the maximum size of a file in bytes. The kubelet allows 10 MiB, but decoding such
	// a file delays the other files for a minute. Kubernetes limits a pod's annotations to half of
	// maxFile.
	maxFile = 512 << 10
)

// Source reads the manifests of a directory. All methods except Refused must be called from one
// goroutine.
type Source struct {
	dir, nodeName string
	logger        klog.Logger
	files         map[string]*file // by file name
	pods          []*v1.Pod        // the pods of all files; nil before the first read
	refused       atomic.Value     // []v1.Pod
}

type file struct {
	seen    string  // the content, or the error of reading the file
	pod     *v1.Pod // the pod in the last valid content, or nil
	refused *v1.Pod // contains the reason why the present content is refused; nil if the content is valid
	running string  // the name and UID of the file's pod in the last result of Read; empty if there was none
}

// fileAnnotation is the annotation that names the file of a pod. If the file is broken when a later
// agent starts, the later agent finds the file's last valid pod by this annotation.
const fileAnnotation = "nodeagent.kubepleg.dev/file"

// NewSource returns the source of a directory. before contains the pods of an earlier agent, for
// files that are broken now. NewSource itself reads no files.
func NewSource(dir, nodeName string, before []*v1.Pod, logger klog.Logger) *Source {
	s := &Source{dir: dir, nodeName: nodeName, logger: logger, files: map[string]*file{}}
	for _, pod := range before {
		pod := &v1.Pod{ObjectMeta: pod.ObjectMeta, Spec: pod.Spec}
		s.files[pod.Annotations[fileAnnotation]] = &file{pod: pod, running: identity(pod)}
	}
	return s
}

// Run calls update with all pods whenever they may have changed, until ctx ends. It first calls
// update as soon as it has read the directory. While the directory cannot be read, Run does not
// call update.
func (s *Source) Run(ctx context.Context, update func([]*v1.Pod)) {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		s.logger.Error(err, "Not notified of manifests; they are read now and then", "period", rescanPeriod)
		watcher = &fsnotify.Watcher{} // its channels are nil, so nothing is received
	} else {
		defer watcher.Close()
	}
	read, away := time.Time{}, false
	for next := time.After(0); ; {
		select {
		case <-ctx.Done():
			return
		case <-watcher.Events:
			// Frequent changes must not delay the next read for longer than rescanPeriod.
			if time.Since(read) < rescanPeriod {
				next = time.After(settleTime)
			}
			continue
		case err := <-watcher.Errors: // such as an overflow of the kernel's queue
			s.logger.V(2).Info("Notifications of manifests were lost", "err", err)
		case <-next:
		}
		if watcher.Events != nil {
			_ = watcher.Add(s.dir) // a new directory needs a new watch; if it is missing, Read fails
		}
		next, read = time.After(rescanPeriod), time.Now()
		pods, changed, err := s.Read()
		switch {
		case err != nil && !away:
			s.logger.Error(err, "The manifests cannot be read; what ran goes on")
		case changed:
			update(pods)
		}
		if away = err != nil; away {
			next = time.After(retryPeriod)
		}
	}
}

// Read returns the pods of the directory, and whether a file has changed since the last call. It
// fails only if it cannot list the directory.
func (s *Source) Read() (pods []*v1.Pod, changed bool, err error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, false, fmt.Errorf("reading the directory of the manifests: %w", err)
	}
	files, changed := map[string]*file{}, s.pods == nil
	for _, e := range entries {
		name := e.Name()
		if !slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(name)) || name[0] == '.' {
			continue
		}
		content, err := readFile(filepath.Join(s.dir, name))
		if !errors.Is(err, fs.ErrNotExist) {
			files[name] = cmp.Or(s.files[name], &file{})
			changed = s.take(name, files[name], content, err) || changed
		}
	}
	if changed || len(files) < len(s.files) {
		s.files, changed = files, true
		s.merge()
	}
	return s.pods, changed, nil
}

func readFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular(): // opening a pipe would block
		return nil, errors.New("it is no regular file")
	case info.Size() > maxFile:
		return nil, fmt.Errorf("it has more than %d bytes", maxFile)
	}
	return os.ReadFile(path)
}

// take stores the content of a file, and reports whether the content has changed.
func (s *Source) take(name string, f *file, content []byte, err error) (changed bool) {
	seen := fmt.Sprint(string(content), err)
	if f.seen == seen {
		return false
	}
	f.seen, f.refused = seen, nil
	pod := &v1.Pod{}
	if err == nil {
		pod, err = Decode(content, s.nodeName)
	}
	if err != nil {
		s.logger.Error(err, "A manifest is refused", "file", name, "lastGoodStays", f.pod != nil)
		f.refused = refusal(name, pod, err.Error())
		return true
	}
	if reason, message := runtime.Admit(pod); reason != "" {
		s.logger.Error(nil, "A pod is refused: this node cannot run it", "file", name, "pod", klog.KObj(pod),
			"reason", reason, "message", message, "lastGoodStays", f.pod != nil)
		f.refused = refusal(name, pod, message)
		f.refused.Status.Reason, f.refused.Status.Message = reason, message // as in the kubelet
		return true
	}
	metav1.SetMetaDataAnnotation(&pod.ObjectMeta, fileAnnotation, name)
	if fields := pod.Annotations[IgnoredAnnotation]; fields != "" {
		s.logger.Info("Fields mean nothing on a node alone", "file", name, "pod", klog.KObj(pod), "fields", fields)
	}
	f.pod = pod
	return true
}

// merge sets s.pods to the pods of all files. If two pods have the same name or UID, the running pod
// stays, so that a copied file changes nothing. If neither pod runs, merge takes the pod from the
// file whose name sorts first.
func (s *Source) merge() {
	pods, refused := []*v1.Pod{}, []v1.Pod{}
	taken := map[string]string{} // maps a pod's name and its UID to the file
	var running, others []string
	for _, name := range slices.Sorted(maps.Keys(s.files)) {
		f := s.files[name]
		if f.refused != nil {
			refused = append(refused, *f.refused)
		}
		switch {
		case f.pod == nil:
		case f.running == identity(f.pod):
			running = append(running, name)
		default:
			others = append(others, name)
		}
	}
	for _, name := range append(running, others...) {
		f := s.files[name]
		full, uid := klog.KObj(f.pod).String(), string(f.pod.UID)
		if other := cmp.Or(taken[full], taken[uid]); other != "" {
			s.logger.Error(nil, "A pod is refused: another has its name or UID", "file", name, "pod", full, "other", other)
			refused = append(refused, *refusal(name, f.pod, "its name or its UID is taken by the pod of "+other))
			f.running = ""
			continue
		}
		taken[full], taken[uid], f.running = name, name, identity(f.pod)
		pods = append(pods, f.pod)
	}
	s.pods = pods
	s.refused.Store(refused)
}

func identity(pod *v1.Pod) string { return klog.KObj(pod).String() + " " + string(pod.UID) }

// refusal returns a pod with a status that gives the reason why the file was refused.
func refusal(file string, of *v1.Pod, why string) *v1.Pod {
	pod := &v1.Pod{Status: v1.PodStatus{Phase: v1.PodFailed, Reason: "ManifestRefused", Message: file + ": " + why}}
	pod.Name, pod.Namespace = cmp.Or(of.Name, file), cmp.Or(of.Namespace, v1.NamespaceDefault)
	pod.UID, pod.Annotations = of.UID, map[string]string{fileAnnotation: file}
	return pod
}

// Refused returns the refused pods, with the reason in their status. It is safe for concurrent use.
func (s *Source) Refused() []v1.Pod {
	refused, _ := s.refused.Load().([]v1.Pod) // nil before the first read
	return refused
}
