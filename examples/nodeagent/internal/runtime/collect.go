package runtime

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Collect removes what is on disk of pods that are no more: an agent may have been killed as it removed them.
func (c *Client) Collect(exists func(types.UID) bool) error {
	var errs []error
	for _, kind := range []string{"pods", "logs"} {
		entries, err := os.ReadDir(filepath.Join(c.stateDir, kind))
		if err != nil && !os.IsNotExist(err) {
			errs = append(errs, err)
		}
		for _, e := range entries { // UID, or NAMESPACE_NAME_UID; none of these has a "_" in it
			if uid := e.Name()[strings.LastIndex(e.Name(), "_")+1:]; !exists(types.UID(uid)) {
				errs = append(errs, os.RemoveAll(filepath.Join(c.stateDir, kind, e.Name())))
			}
		}
	}
	return errors.Join(errs...)
}

// RemoveLogs removes the logs of an instance of a container.
func (c *Client) RemoveLogs(pod *v1.Pod, container string, restartCount int) error {
	paths, err := filepath.Glob(filepath.Join(c.LogDir(pod), container, fmt.Sprintf("%d.log*", restartCount)))
	errs := []error{err}
	for _, path := range paths {
		errs = append(errs, os.Remove(path))
	}
	return errors.Join(errs...)
}
