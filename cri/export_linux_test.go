package cri

// SetProcDir sets the folder that is read as /proc. The returned function restores it.
func SetProcDir(dir string) (restore func()) {
	before := procDir
	procDir = dir
	return func() { procDir = before }
}

// PidfdsHaveExits returns why this kernel's pidfds have no exit codes.
func PidfdsHaveExits() error { return pidfdsHaveExits() }

// KernelVersion is the version in the name of a kernel's release.
func KernelVersion(release string) (major, minor int) { return kernelVersion(release) }
