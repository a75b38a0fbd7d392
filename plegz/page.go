package plegz

import (
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"fmt"
	"strings"
)

//go:embed page
var pageFiles embed.FS

// page is the HTML document with its Content-Security-Policy. The document includes its styles and
// scripts, so it works under any path. The policy allows only these styles and scripts.
var page = newPage(func(name string) string {
	b, _ := pageFiles.ReadFile("page/" + name) // TestPage fails if a file is missing
	return string(b)
})

// The scripts are joined in this order into one script. While a part runs, it may use only the
// parts above it. After all parts have run, each part may use all others.
var scripts = []string{
	"model.js", "dom.js", "state.js", "stream.js", "drawing.js", "health.js", "plots.js", "side.js", "events.js",
	"filter.js", "lanes.js", "detail.js", "keys.js", "start.js",
}

type htmlPage struct {
	document []byte
	policy   string
}

func newPage(file func(name string) string) htmlPage {
	style, script := "\n"+file("page.css"), ""
	for _, name := range scripts {
		script += "\n" + file(name)
	}
	document := strings.NewReplacer(
		"<!-- style -->", "<style>"+style+"</style>",
		"<!-- script -->", "<script>"+script+"</script>",
	).Replace(file("page.html"))
	return htmlPage{
		document: []byte(document),
		policy: fmt.Sprintf("default-src 'none'; script-src %s; style-src %s; connect-src 'self'; img-src data:; "+
			"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "+
			"require-trusted-types-for 'script'; trusted-types 'none'", hashSource(script), hashSource(style)),
	}
}

// hashSource returns a text's hash in the syntax of a Content-Security-Policy.
func hashSource(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}
