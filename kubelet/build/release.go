package main

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// versions are the supported releases, the newest last.
var versions = []string{"v1.32.10", "v1.33.13", "v1.34.4", "v1.35.4", "v1.36.3", "v1.37.2"}

// sums are the checksums of a module that the kubelet v1.32.10 needs. Some mirrors of the checksum
// database lack these checksums.
const sums = `k8s.io/dynamic-resource-allocation v0.32.10 h1:cfmonTCEjWCjBg+LyI+WDMk6oGzTCu1F0rbK8peCDTw=
k8s.io/dynamic-resource-allocation v0.32.10/go.mod h1:6PInlWzINIGVruu42ytyk5PFBKK7USwepIWk/w8sRyw=
`

// release is the minor number of a Kubernetes release.
type release int

func (r release) String() string { return "1." + strconv.Itoa(int(r)) }

var minor = regexp.MustCompile(`^v?1\.(\d+)(\.|$)`)

// releaseOf returns the release of a version.
func releaseOf(version string) (release, error) {
	m := minor.FindStringSubmatch(version)
	if m == nil {
		return 0, fmt.Errorf("%q is no version of Kubernetes", version)
	}
	n, err := strconv.Atoi(m[1])
	return release(n), err
}

// versionOf returns the version of a release such as 1.33. It also accepts a version.
func versionOf(name string) (string, error) {
	for _, v := range versions {
		if strings.HasPrefix(v, "v"+name+".") {
			return v, nil
		}
	}
	if _, err := releaseOf(name); err != nil || strings.Count(name, ".") < 2 {
		return "", fmt.Errorf("-release is %q; it may be one of %s, or another version", name, strings.Join(versions, ", "))
	}
	return "v" + strings.TrimPrefix(name, "v"), nil
}

func newest() string { return versions[len(versions)-1] }
