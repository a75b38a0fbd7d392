package cri

import (
	"io"
	"io/fs"
	"os"
	"syscall"
	"time"
)

// readSmallFile returns the content of a file and the time of its last change. It fails if the file
// is larger than limit or is not a regular file. So it does not block, even if the file is a pipe.
func readSmallFile(path string, limit int64) (content []byte, written time.Time, err error) {
	info, err := os.Lstat(path)
	if err != nil {
		return nil, time.Time{}, err
	}
	if !info.Mode().IsRegular() {
		return nil, time.Time{}, fs.ErrInvalid
	}
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, time.Time{}, err
	}
	defer file.Close()
	if info, err = file.Stat(); err != nil {
		return nil, time.Time{}, err
	}
	if info.Size() > limit || !info.Mode().IsRegular() { // the file may have been replaced after Lstat
		return nil, time.Time{}, fs.ErrInvalid
	}
	content, err = io.ReadAll(io.LimitReader(file, limit))
	return content, info.ModTime(), err
}
