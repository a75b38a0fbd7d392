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
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"
	v1 "k8s.io/api/core/v1"
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

// Source reads the manifests of a directory. Its methods are called from one goroutine.
type Source struct {
	dir, nodeName string
	logger        klog.Logger
	files         map[string]*file // by name
	before        []*v1.Pod        // as an agent before this one had them
	pods          []*v1.Pod        // of all files
	read          bool             // the directory could be read last
}

type file struct {
	content []byte
	pods    []*v1.Pod // of content, the last that was good
	err     string    // what is wrong with the present content, or ""
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
	return s.pods, changed, nil
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
		f.err = ""
		return false
	}
	var pods []*v1.Pod
	if err == nil {
		pods, err = Decode(content, s.nodeName)
	}
	if err != nil {
		if f.err == "" && f.pods == nil {
			f.pods = s.lastGood(name)
			changed = f.pods != nil
		}
		if f.err != err.Error() {
			s.logger.Error(err, "A manifest is refused", "file", name, "lastGoodStays", len(f.pods) > 0)
		}
		f.err = err.Error()
		return changed
	}
	for _, pod := range pods {
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, fileAnnotation, name)
	}
	for _, pod := range pods {
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
		for _, pod := range s.files[name].pods {
			full, uid := klog.KObj(pod).String(), string(pod.UID)
			if other := cmp.Or(taken[full], taken[uid]); other != "" {
				s.logger.Error(nil, "A pod is refused: another has its name or UID", "file", name, "pod", full, "other", other)
				continue
			}
			taken[full], taken[uid] = name, name
			s.pods = append(s.pods, pod)
		}
	}
}
