package status

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
)

// Directory is a sink that stores each pod in a JSON file in a directory. Write replaces the file
// as a whole. Write is not safe for concurrent use.
type Directory string

// Write writes a pod with its status.
func (d Directory) Write(pod *v1.Pod) error {
	text, err := json.MarshalIndent(pod, "", "  ")
	if err = errors.Join(err, os.MkdirAll(string(d), 0o700)); err != nil {
		return fmt.Errorf("preparing the status of %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	unfinished := filepath.Join(string(d), "unfinished")                        // stays if the agent is killed
	if err := os.WriteFile(unfinished, append(text, '\n'), 0o600); err != nil { // pods may contain secrets
		return err
	}
	return os.Rename(unfinished, d.path(pod))
}

// Remove removes the file of a pod.
func (d Directory) Remove(pod *v1.Pod) error { return os.RemoveAll(d.path(pod)) } // no error if the file is missing

func (d Directory) path(pod *v1.Pod) string {
	return filepath.Join(string(d), fmt.Sprintf("%s_%s_%s.json", pod.Namespace, pod.Name, pod.UID))
}

// Read returns the stored pods, and the errors of unreadable files.
func (d Directory) Read() (pods []*v1.Pod, err error) {
	paths, err := filepath.Glob(filepath.Join(string(d), "*.json"))
	for _, path := range paths {
		pod := &v1.Pod{}
		text, failed := os.ReadFile(path)
		if failed == nil {
			failed = json.Unmarshal(text, pod)
		}
		if failed != nil {
			err = errors.Join(err, fmt.Errorf("reading the status file %s: %w", path, failed))
			continue
		}
		pods = append(pods, pod)
	}
	return pods, err
}
