package testnode

import "maps"

// StaticPod returns the manifest of a static pod on the host's network. Its only container is named
// app and sleeps. The argument more contains further fields of the container.
func StaticPod(name string, more map[string]any) map[string]any {
	app := map[string]any{
		"name": "app", "image": BusyboxImage, "imagePullPolicy": "Never", "command": []string{"sleep", "1000000"},
	}
	maps.Copy(app, more)
	return map[string]any{
		"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": name, "namespace": "default"},
		"spec": map[string]any{
			"hostNetwork": true, "automountServiceAccountToken": false, "restartPolicy": "Always",
			"terminationGracePeriodSeconds": 0, "enableServiceLinks": false, "containers": []any{app},
		},
	}
}
