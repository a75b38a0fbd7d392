package ends

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
	"k8s.io/klog/v2"
)

const (
	storeFile = "ends.db"
	// lockWait is how long a program waits for an earlier one that is about to end.
	lockWait = 2 * time.Second
)

// The buckets of the file. The first contains a container by its ID, the second an openEnd by its number.
const (
	containersBucket = "containers"
	endsBucket       = "ends"
)

// store contains the containers and the open ends. Changes are made in memory; flush writes them to
// a file.
type store struct {
	db     *bbolt.DB
	logger klog.Logger

	// flushing is held by flush, so that changes are written in their order.
	flushing sync.Mutex
	failing  bool // true if the last flush failed; guarded by flushing

	mu         sync.Mutex            // guards the fields below, and those of follower
	containers map[string]*container // by ID
	gone       []*container          // those that are gone; the first to go first
	open       []*openEnd            // by number
	newest     uint64                // the number of the newest end
	pending    map[entry][]byte      // the values of entries that are not written yet; nil deletes an entry
}

// entry is an entry of the file.
type entry struct{ bucket, key string }

// endKey returns the key of an end. Keys sort like numbers.
func endKey(number uint64) string { return fmt.Sprintf("%016x", number) }

// openStore opens the store in a folder.
func openStore(dir string, logger klog.Logger) (*store, error) {
	s := &store{logger: logger, containers: make(map[string]*container), pending: make(map[entry][]byte)}
	err := os.MkdirAll(dir, 0o700)
	if err == nil {
		err = s.load(filepath.Join(dir, storeFile))
	}
	switch errno := syscall.Errno(0); {
	case err == nil:
		return s, nil
	case errors.Is(err, bolterrors.ErrTimeout):
		err = errors.New("another program uses it")
	case !errors.As(err, &errno): // not an error of the file system
		err = fmt.Errorf("%s is damaged: %w", storeFile, err)
	}
	return nil, fmt.Errorf("opening the folder of ends %s: %w", dir, err)
}

// load opens the file and reads all of it. If a page is damaged, bbolt may panic. If the file is too
// short, the processor faults. Both are errors here. The file then stays locked until the process
// ends, because bbolt cannot be made to close it.
func (s *store) load(path string) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%v", r)
		}
	}()
	if s.db, err = bbolt.Open(path, 0o600, &bbolt.Options{Timeout: lockWait}); err != nil {
		return err
	}
	err = s.db.Update(func(tx *bbolt.Tx) error {
		if info, err := os.Stat(path); err != nil || info.Size() < tx.Size() {
			return cmp.Or(err, errors.New("its end is missing"))
		}
		if err := each(tx, containersBucket, func(id string, c *container) {
			if s.containers[id] = c; !c.GoneSince.IsZero() {
				s.gone = append(s.gone, c)
			}
		}); err != nil {
			return err
		}
		return each(tx, endsBucket, func(key string, o *openEnd) {
			o.number, _ = strconv.ParseUint(key, 16, 64)
			s.open, s.newest = append(s.open, o), o.number
			if c := s.containers[o.ContainerID]; c != nil && c.Ended && c.ID == o.ID {
				c.end = o
			}
		})
	})
	slices.SortFunc(s.gone, func(a, b *container) int { return a.GoneSince.Compare(b.GoneSince) })
	if err != nil {
		err = errors.Join(err, s.db.Close())
	}
	return err
}

// each calls f with each value of a bucket, by key. If there is no bucket, each makes it.
func each[T any](tx *bbolt.Tx, bucket string, f func(key string, value *T)) error {
	b, err := tx.CreateBucketIfNotExists([]byte(bucket))
	if err != nil {
		return err
	}
	return b.ForEach(func(key, text []byte) error {
		value := new(T)
		if err := json.Unmarshal(text, value); err != nil {
			return fmt.Errorf("%s %s: %w", bucket, key, err)
		}
		f(string(key), value)
		return nil
	})
}

// putLocked sets the value of an entry, or deletes the entry if the value is nil. The caller holds mu.
func (s *store) putLocked(bucket, key string, value any) {
	var text []byte
	if value != nil {
		text, _ = json.Marshal(value) // fails only for a time after the year 9999
	}
	s.pending[entry{bucket, key}] = text
}

// flush writes the pending changes. If that fails, they stay pending.
func (s *store) flush() error {
	s.flushing.Lock()
	defer s.flushing.Unlock()
	s.mu.Lock()
	changes := s.pending
	s.pending = make(map[entry][]byte)
	s.mu.Unlock()
	if len(changes) == 0 {
		return nil
	}
	err := s.db.Update(func(tx *bbolt.Tx) error {
		for e, text := range changes {
			bucket := tx.Bucket([]byte(e.bucket))
			err := error(nil)
			if text == nil {
				err = bucket.Delete([]byte(e.key))
			} else {
				err = bucket.Put([]byte(e.key), text)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	switch {
	case err != nil:
		s.mu.Lock()
		maps.Copy(changes, s.pending) // a later change replaces an earlier one
		s.pending = changes
		s.mu.Unlock()
		if !s.failing {
			s.logger.Error(err, "Cannot write the ends of containers; will try again", "file", s.db.Path())
		}
	case s.failing:
		s.logger.Info("The ends of containers are written again", "file", s.db.Path())
	}
	s.failing = err != nil
	return err
}

// close writes the pending changes and closes the file.
func (s *store) close() {
	s.mu.Lock()
	for _, o := range s.open {
		if o.held != nil {
			o.held.Stop()
		}
	}
	s.mu.Unlock()
	_ = s.flush() // it has logged its error
	if err := s.db.Close(); err != nil {
		s.logger.Error(err, "Cannot close the file of ends")
	}
}
