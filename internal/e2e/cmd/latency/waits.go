package main

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// waitReader is a bare client of containerd's shims: for each container, it calls Wait and does
// nothing else.
type waitReader struct {
	conns  []net.Conn
	joined sync.WaitGroup

	mu       sync.Mutex
	answered map[string]time.Time // when Wait was answered, by container; guarded by mu
}

// readWaits calls Wait for each container. state is containerd's state directory.
func readWaits(mortals []mortal, state string) (*waitReader, error) {
	r := &waitReader{answered: map[string]time.Time{}}
	for _, m := range mortals {
		if err := r.wait(m.id, filepath.Join(state, "io.containerd.runtime.v2.task/k8s.io", m.id)); err != nil {
			r.close()
			return nil, fmt.Errorf("calling Wait for container %s: %w", m.id, err)
		}
	}
	return r, nil
}

// wait calls Wait for a container, and notes when it is answered.
func (r *waitReader) wait(id, bundle string) error {
	version, address, err := shimOf(bundle)
	if err != nil {
		return err
	}
	conn, err := net.Dial("unix", strings.TrimPrefix(address, "unix://"))
	if err != nil {
		return err
	}
	r.conns = append(r.conns, conn)
	if _, err := conn.Write(waitCall(version, id)); err != nil {
		return err
	}
	r.joined.Go(func() {
		if _, err := io.ReadFull(conn, make([]byte, 10)); err != nil {
			return // an answer that is missing fails the measurement
		}
		at := time.Now()
		r.mu.Lock()
		defer r.mu.Unlock()
		r.answered[id] = at
	})
	return nil
}

// shimOf returns the version of the task service and the address of a bundle's shim.
func shimOf(bundle string) (version int, address string, err error) {
	content, err := os.ReadFile(filepath.Join(bundle, "bootstrap.json"))
	if errors.Is(err, fs.ErrNotExist) { // containerd 1
		content, err = os.ReadFile(filepath.Join(bundle, "address"))
		return 2, string(content), err
	}
	var of struct {
		Version int
		Address string
	}
	if err == nil {
		err = json.Unmarshal(content, &of)
	}
	return of.Version, of.Address, err
}

// waitCall returns the ttrpc frame of a call of Wait: the header with the length, the call's number
// and the type, and the request with service, method and payload.
func waitCall(version int, id string) []byte {
	payload := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), id)
	var request []byte
	for i, field := range []string{fmt.Sprintf("containerd.task.v%d.Task", version), "Wait", string(payload)} {
		request = protowire.AppendString(protowire.AppendTag(request, protowire.Number(i+1), protowire.BytesType), field)
	}
	frame := binary.BigEndian.AppendUint32(nil, uint32(len(request)))
	frame = append(binary.BigEndian.AppendUint32(frame, 1), 1, 0)
	return append(frame, request...)
}

func (r *waitReader) close() {
	for _, conn := range r.conns {
		conn.Close()
	}
	r.joined.Wait()
}

// of returns the time when Wait was answered for a container.
func (r *waitReader) of(id string) (time.Time, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	at := r.answered[id]
	if at.IsZero() {
		return at, fmt.Errorf("the shim of container %s has not answered", id)
	}
	return at, nil
}
