package manifest

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
)

const (
	// settleTime is how long the directory must be quiet before it is read: whoever writes a manifest in place writes it
	// in several steps.
	settleTime = 100 * time.Millisecond
	// rescanPeriod is how often the directory is read without a notification, retryPeriod how often one that cannot be.
	rescanPeriod, retryPeriod = 20 * time.Second, time.Second
	// maxFile is the size of the largest file that is read, which is the kubelet's.
	maxFile = 10 << 20
)

// Source reads the manifests of a directory. Its methods are called from one goroutine, but for Refused.
type Source struct {
	dir, nodeName string
	logger        klog.Logger
	files         map[string]*file // by name
	before        []*v1.Pod        // as an agent before this one had them
	pods          []*v1.Pod        // of all files
	read          bool             // the directory could be read last

	mu      sync.Mutex
	refused []v1.Pod // guarded by mu
}

type file struct {
	content []byte
	pods    []*v1.Pod // of content, the last that was good
	refused []v1.Pod  // why the present content is refused, or nil
	taken   []v1.Pod  // pods of which there is another
}

// fileAnnotation is the annotation of a pod that names its file: a later agent finds the last good content by it.
const fileAnnotation = "nodeagent.kubepleg.dev/file"

// NewSource returns the source of a directory. before are the pods of an agent before this one: they are the last good
// content of files that are broken. Nothing is read before Read or Run.
func NewSource(dir, nodeName string, before []*v1.Pod, logger klog.Logger) *Source {
	return &Source{dir: dir, nodeName: nodeName, logger: logger, before: before, files: map[string]*file{}}
}

// Run hands the pods to update whenever they change, until ctx ends. The first time is at once, unless the directory
// cannot be read: then there are no pods yet, which is not the same as an empty directory.
func (s *Source) Run(ctx context.Context, update func([]*v1.Pod)) {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		s.logger.Error(err, "Not notified of manifests; they are read now and then", "period", rescanPeriod)
		watcher = &fsnotify.Watcher{} // its channels are nil
	} else {
		defer watcher.Close()
	}
	rescan := time.NewTicker(rescanPeriod)
	defer rescan.Stop()
	settled := time.NewTimer(0)
	defer settled.Stop()
	why := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-watcher.Events:
			settled.Reset(settleTime)
			continue
		case err := <-watcher.Errors:
			// Such as an overflow of the kernel's queue.
			s.logger.V(2).Info("Notifications of manifests were lost", "err", err)
		case <-rescan.C:
		case <-settled.C:
		}
		if watcher.Events != nil {
			_ = watcher.Add(s.dir) // each time, for it may be another directory; if there is none, Read says so
		}
		pods, changed, err := s.Read()
		switch {
		case err != nil:
			settled.Reset(retryPeriod)
			if why != err.Error() {
				s.logger.Error(err, "The manifests cannot be read; what ran goes on")
			}
			why = err.Error()
		case changed:
			why = ""
			update(pods)
		}
	}
}

// Read reads the directory and returns its pods, and whether they may have changed since the last time. It fails only
// if the directory cannot be listed.
func (s *Source) Read() (pods []*v1.Pod, changed bool, err error) {
	entries, err := os.ReadDir(s.dir)
	changed, s.read = !s.read, err == nil
	if err != nil {
		return nil, false, fmt.Errorf("reading the directory of the manifests: %w", err)
	}
	seen := sets.New[string]()
	for _, e := range entries {
		name := e.Name()
		if !slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(name)) || name[0] == '.' {
			continue
		}
		content, err := readFile(filepath.Join(s.dir, name))
		if !errors.Is(err, fs.ErrNotExist) {
			seen.Insert(name)
			changed = s.take(name, content, err) || changed
		}
	}
	for name := range s.files {
		if !seen.Has(name) {
			s.logger.V(1).Info("A manifest is gone", "file", name)
			delete(s.files, name)
			changed = true
		}
	}
	if changed {
		s.merge()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refused = nil
	for _, name := range slices.Sorted(maps.Keys(s.files)) {
		s.refused = slices.Concat(s.refused, s.files[name].refused, s.files[name].taken)
	}
	return s.pods, changed, nil
}

// Refused returns a pod for each that was refused, or for its file if it has no name, with the reason in its status.
// It may be called at any time.
func (s *Source) Refused() []v1.Pod {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.refused
}

// refusal returns a pod that was refused.
func refusal(file string, of metav1.ObjectMeta, why string) v1.Pod {
	pod := v1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: cmp.Or(of.Name, file), Namespace: cmp.Or(of.Namespace, v1.NamespaceDefault), UID: of.UID,
		Annotations: map[string]string{fileAnnotation: file},
	}}
	pod.Status = v1.PodStatus{Phase: v1.PodFailed, Reason: "ManifestRefused", Message: file + ": " + why}
	return pod
}

func readFile(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe does not block it
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readStable(f)
}

// readStable reads a file that nobody writes meanwhile.
func readStable(f fs.File) ([]byte, error) {
	before, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case !before.Mode().IsRegular():
		return nil, errors.New("it is no regular file")
	case before.Size() > maxFile:
		return nil, fmt.Errorf("it has more than %d bytes", maxFile)
	}
	content, err := io.ReadAll(io.LimitReader(f, maxFile))
	if err != nil {
		return nil, err
	}
	after, err := f.Stat()
	if err == nil && (!after.ModTime().Equal(before.ModTime()) || after.Size() != before.Size()) {
		err = errors.New("it changes while it is read")
	}
	return content, err
}

// take takes in the content of a file, and reports whether its pods changed.
func (s *Source) take(name string, content []byte, err error) (changed bool) {
	f := s.files[name]
	if f == nil {
		f = &file{}
		s.files[name] = f
	}
	if err == nil && f.pods != nil && bytes.Equal(f.content, content) {
		f.refused = nil
		return false
	}
	var pods []*v1.Pod
	if err == nil {
		pods, err = Decode(content, s.nodeName)
	}
	if err != nil {
		var of podError
		_ = errors.As(err, &of) // else it has no name
		refused := []v1.Pod{refusal(name, of.ObjectMeta, err.Error())}
		if f.refused == nil && f.pods == nil {
			f.pods = s.lastGood(name)
			changed = f.pods != nil
		}
		if !equality.Semantic.DeepEqual(f.refused, refused) {
			s.logger.Error(err, "A manifest is refused", "file", name, "lastGoodStays", len(f.pods) > 0)
		}
		f.refused = refused
		return changed
	}
	for _, pod := range pods {
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, fileAnnotation, name)
		if fields := pod.Annotations[IgnoredAnnotation]; fields != "" {
			s.logger.Info("Fields mean nothing on a node alone", "file", name, "pod", klog.KObj(pod), "fields", fields)
		}
	}
	*f = file{content: content, pods: pods}
	return true
}

// lastGood returns the pods that an agent before this one had from a file.
func (s *Source) lastGood(name string) (pods []*v1.Pod) {
	for _, pod := range s.before {
		if pod.Annotations[fileAnnotation] == name {
			pod = pod.DeepCopy()
			pod.Status = v1.PodStatus{}
			pods = append(pods, pod)
		}
	}
	return pods
}

// merge sets the pods to those of all files. Of two with one name or UID, the one in the file that sorts first is it.
func (s *Source) merge() {
	s.pods = nil
	taken := map[string]string{} // names and UIDs, and the file
	for _, name := range slices.Sorted(maps.Keys(s.files)) {
		f := s.files[name]
		f.taken = nil
		for _, pod := range f.pods {
			full, uid := klog.KObj(pod).String(), string(pod.UID)
			if other := cmp.Or(taken[full], taken[uid]); other != "" {
				s.logger.Error(nil, "A pod is refused: another has its name or UID", "file", name, "pod", full, "other", other)
				f.taken = append(f.taken, refusal(name, pod.ObjectMeta, "its name or its UID is taken by a pod of "+other))
				continue
			}
			taken[full], taken[uid] = name, name
			s.pods = append(s.pods, pod)
		}
	}
}
