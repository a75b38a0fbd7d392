package manifest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
)

const (
	// settleTime is how long the directory must be quiet before it is read: whoever writes a manifest in place writes it
	// in several steps.
	settleTime = 100 * time.Millisecond
	// rescanPeriod is how often the directory is read without a notification.
	rescanPeriod = 20 * time.Second
)

// Source reads the manifests of a directory. Its methods are called from one goroutine.
type Source struct {
	dir, nodeName string
	logger        klog.Logger
	files         map[string]*file // by name
	dirErr        string           // why the directory could not be read last
}

// file is a manifest file.
type file struct {
	content []byte
	pods    []*v1.Pod // of the last good content
	err     string    // what is wrong with the present content, or ""
}

// NewSource returns the source of a directory. Nothing is read before Read or Run.
func NewSource(dir, nodeName string, logger klog.Logger) *Source {
	return &Source{dir: dir, nodeName: nodeName, logger: logger, files: map[string]*file{}}
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
	watched := false
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
		if !watched && watcher.Events != nil {
			watched = watcher.Add(s.dir) == nil
		}
		pods, changed, err := s.Read()
		switch {
		case err != nil:
			watched = false // it may be another directory when it comes back
			if s.dirErr != err.Error() {
				s.logger.Error(err, "The manifests cannot be read; what ran goes on")
			}
			s.dirErr = err.Error()
		case changed || s.dirErr != "":
			s.dirErr = ""
			update(pods)
		}
	}
}

// Read reads the directory and returns its pods, and whether they changed since the last time. It fails only if the
// directory cannot be listed.
func (s *Source) Read() (pods []*v1.Pod, changed bool, err error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, false, fmt.Errorf("reading the directory of the manifests: %w", err)
	}
	first := s.dirErr == "" && len(s.files) == 0
	seen := map[string]bool{}
	for _, e := range entries {
		name := e.Name()
		switch filepath.Ext(name) {
		case ".yaml", ".yml", ".json":
		default:
			continue
		}
		if strings.HasPrefix(name, ".") {
			continue
		}
		content, err := readStable(filepath.Join(s.dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		seen[name] = true
		changed = s.take(name, content, err) || changed
	}
	for name := range s.files {
		if !seen[name] {
			s.logger.V(1).Info("A manifest is gone", "file", name)
			delete(s.files, name)
			changed = true
		}
	}
	return s.pods(), changed || first, nil
}

// errUnstable says that a file changed while it was read.
var errUnstable = errors.New("it changes while it is read")

// readStable reads a file that nobody writes meanwhile.
func readStable(path string) ([]byte, error) {
	before, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if before.IsDir() {
		return nil, errors.New("it is a directory")
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	after, err := os.Stat(path)
	if err == nil && (!after.ModTime().Equal(before.ModTime()) || after.Size() != before.Size()) {
		err = errUnstable
	}
	return content, err
}

// take takes in the content of a file, and reports whether its pods changed.
func (s *Source) take(name string, content []byte, err error) bool {
	f := s.files[name]
	if f == nil {
		f = &file{}
		s.files[name] = f
	} else if err == nil && f.err == "" && bytes.Equal(f.content, content) {
		return false
	}
	var pods []*v1.Pod
	if err == nil {
		pods, err = Decode(content, s.nodeName)
	}
	if err != nil {
		if f.err != err.Error() {
			s.logger.Error(err, "A manifest is refused", "file", name, "lastGoodStays", len(f.pods) > 0)
		}
		f.err = err.Error()
		return false
	}
	if f.err != "" && bytes.Equal(f.content, content) {
		f.err = ""
		return false
	}
	*f = file{content: content, pods: pods}
	return true
}

// pods returns the pods of all files. Of two with one name or UID, the one in the file that sorts first is it.
func (s *Source) pods() []*v1.Pod {
	var pods []*v1.Pod
	names, uids := map[string]string{}, map[types.UID]string{}
	for _, name := range slices.Sorted(maps.Keys(s.files)) {
		for _, pod := range s.files[name].pods {
			full := pod.Namespace + "/" + pod.Name
			if other := names[full] + uids[pod.UID]; other != "" {
				s.logger.Error(nil, "A pod is refused: another has its name or UID", "file", name, "pod", full, "other", other)
				continue
			}
			names[full], uids[pod.UID] = name, name
			pods = append(pods, pod)
		}
	}
	return pods
}
