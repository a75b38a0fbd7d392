package status

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
)

// Directory is a sink: a directory with a JSON file per pod, which holds the pod with its status. Files are replaced
// atomically: who reads one reads a whole one.
type Directory string

// Write implements Sink.
func (d Directory) Write(_ context.Context, changed, gone []*v1.Pod) error {
	if err := os.MkdirAll(string(d), 0o755); err != nil {
		return fmt.Errorf("making the directory of the statuses: %w", err)
	}
	var errs []error
	for _, pod := range gone {
		errs = append(errs, os.RemoveAll(d.path(pod))) // no error if there is none
	}
	for _, pod := range changed {
		errs = append(errs, d.write(pod))
	}
	return errors.Join(errs...)
}

func (d Directory) path(pod *v1.Pod) string {
	return filepath.Join(string(d), fmt.Sprintf("%s_%s_%s.json", pod.Namespace, pod.Name, pod.UID))
}

func (d Directory) write(pod *v1.Pod) error {
	text, err := json.MarshalIndent(pod, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding the status of %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	path := d.path(pod)
	if err := os.WriteFile(path+".tmp", append(text, '\n'), 0o644); err != nil { //nolint:gosec // no secrets
		return err
	}
	return os.Rename(path+".tmp", path)
}

// Read returns the pods that were written before. A file that cannot be read is left out, and its error is part of
// err.
func (d Directory) Read() (pods []*v1.Pod, err error) {
	paths, err := filepath.Glob(filepath.Join(string(d), "*.json"))
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, path := range paths {
		pod := &v1.Pod{}
		text, err := os.ReadFile(path)
		if err == nil {
			err = json.Unmarshal(text, pod)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("reading the status file %s: %w", path, err))
			continue
		}
		pods = append(pods, pod)
	}
	return pods, errors.Join(errs...)
}
