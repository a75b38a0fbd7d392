package plegz_test

import (
	"crypto/sha256"
	"encoding/base64"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
)

// The page is one document with one style and one script, and its policy allows only these two. It
// contains no handlers in attributes, no functions that turn data into code or HTML, and no
// addresses of other sites.
func TestPage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		w := n.get("/?format=html")
		document, policy := w.Body.String(), w.Header().Get("Content-Security-Policy")
		for _, tag := range []string{"style", "script"} {
			blocks := regexp.MustCompile(`(?s)<`+tag+`>(.*?)</`+tag+`>`).FindAllStringSubmatch(document, -1)
			if len(blocks) != 1 || len(blocks[0][1]) < 1000 || strings.Count(document, "<"+tag) != 1 {
				t.Fatalf("%d blocks of %s", len(blocks), tag)
			}
			sum := sha256.Sum256([]byte(blocks[0][1]))
			want := tag + "-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "';"
			if !strings.Contains(policy, want) {
				t.Errorf("the policy has no %s: %s", want, policy)
			}
		}
		files, err := filepath.Glob("page/*")
		if err != nil || len(files) < 10 {
			t.Fatal(files, err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil || file != "page/page.html" && !strings.Contains(document, string(text)) {
				t.Errorf("%s is not in the page; %v", file, err)
			}
		}
		if !strings.HasPrefix(policy, "default-src 'none'; ") || strings.Contains(policy, "unsafe") {
			t.Errorf("policy %s", policy)
		}
		elsewhere := strings.ReplaceAll(document, "http://www.w3.org/2000/svg", "")
		for _, forbidden := range []string{
			`\son\w+\s*=\s*["']`, `https?://`, `innerHTML|outerHTML|insertAdjacentHTML|document\.write`, `\beval\(|new Function`,
			`javascript:`, `localStorage|document\.cookie`, `\sstyle="`,
		} {
			if found := regexp.MustCompile(forbidden).FindString(elsewhere); found != "" {
				t.Errorf("the page has %q", found)
			}
		}
	})
}

// The documentation of the package or of Healthz mentions each JSON field.
func TestFieldsAreDescribed(t *testing.T) {
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	healthz, err := os.ReadFile("healthz.go")
	if err != nil {
		t.Fatal(err)
	}
	doc = append(doc, healthz...)
	var fields []string
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if file == "event.go" {
			continue // Event is exported: its own documentation describes the fields
		}
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile("`json:\"(\\w+)").FindAllStringSubmatch(string(source), -1) {
			fields = append(fields, m[1])
		}
	}
	if len(fields) < 50 {
		t.Fatalf("%d fields", len(fields))
	}
	for _, f := range fields {
		if !regexp.MustCompile(`\b` + f + `\b`).Match(doc) {
			t.Errorf("doc.go does not describe %s", f)
		}
	}
}
