// Command decode prints what the agent makes of the manifest files in its arguments, one JSON object
// per file: the pod, or the error. kubelet/differential compares this with the kubelet's decoder.
package main

import (
	"encoding/json"
	"os"

	"github.com/kubepleg/pleg/nodeagent/internal/manifest"
)

func main() {
	for _, path := range os.Args[1:] {
		content, err := os.ReadFile(path)
		result := map[string]any{}
		if err == nil {
			result["pod"], err = manifest.Decode(content, "node")
		}
		if err != nil {
			result = map[string]any{"error": err.Error()}
		}
		if json.NewEncoder(os.Stdout).Encode(result) != nil {
			os.Exit(1)
		}
	}
}
