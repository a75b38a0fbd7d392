package containerd

import (
	"os"
	"path/filepath"
	"text/template"
)

// config is containerd's configuration. Everything that it writes is below the
// daemon's folder; nothing of the machine's own configuration is read.
//
// restrict_oom_score_adj: without CAP_SYS_RESOURCE every sandbox would fail on
// its oom_score_adj. no_sync: what is written must survive the death of the
// process, not that of the machine. CRI's server for exec and attach, which
// nothing here uses, cannot be switched off: it takes any free loopback port.
var config = template.Must(template.New("config.toml").Parse(`version = 3
root = '{{.}}/root'
state = '{{.}}/state'
disabled_plugins = [
  'io.containerd.internal.v1.opt',
  'io.containerd.nri.v1.nri',
  'io.containerd.tracing.processor.v1.otlp',
  'io.containerd.internal.v1.tracing',
]

[debug]
  level = 'warn'
[plugins.'io.containerd.server.v1.grpc']
  address = '{{.}}/c.sock'
[plugins.'io.containerd.server.v1.ttrpc']
  address = '{{.}}/c.sock.ttrpc'
[plugins.'io.containerd.shim.v1.manager']
  socket_dir = '{{.}}/s'
[plugins.'io.containerd.metadata.v1.bolt']
  no_sync = true
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = '` + PauseImage + `'
[plugins.'io.containerd.cri.v1.runtime']
  disable_apparmor = true
  restrict_oom_score_adj = true
  cdi_spec_dirs = []
[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = ['{{.}}/cni']
  conf_dir = '{{.}}/cni'
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = 'io.containerd.runc.v2'
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
  Root = '{{.}}/runc'
`))

func writeConfig(dir string) (path string, err error) {
	path = filepath.Join(dir, "config.toml")
	f, err := os.Create(path)
	if err != nil {
		return "", err
	}
	if err := config.Execute(f, dir); err != nil {
		f.Close()
		return "", err
	}
	return path, f.Close()
}
