// Command mutants shows how many faults the tests find. It runs test binaries in which one small fault at a
// time is switched on. It changes no file: the faults are in an overlay of the build.
//
//	go run ./mutants -choose 200 >LIST     chooses faults at random: file, line, column and operator
//	go run ./mutants LIST PACKAGE...       prints for each fault the tests of the packages that fail
package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"log"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/tools/go/ast/astutil"
)

var (
	root   = flag.String("root", "../..", "the folder of the module with the faults")
	choose = flag.Int("choose", 0, "how many faults to choose")
	first  = flag.Bool("failfast", false, "end the tests of a package at the first that fails")
	limit  = flag.Duration("timeout", 3*time.Minute, "how long the tests of a package may take; longer is a failure")
)

// core lists the folders with the code that receives faults.
var core = []string{".", "internal/core/schedule", "internal/core/broadcast"}

// fault is a small fault. Its operators are: "negate" negates the condition of an if, "and"
// replaces || by &&, "or" replaces && by ||, and "drop" omits a call, an assignment, ++ or --.
type fault struct {
	file         string
	line, column int
	operator     string
}

func (f fault) String() string {
	return fmt.Sprintf("%s:%d:%d:%s", f.file, f.line, f.column, f.operator)
}

func main() {
	log.SetFlags(0)
	flag.Parse()
	if *choose > 0 {
		all, err := mutate(nil, "")
		if err != nil {
			log.Fatal(err)
		}
		r := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // the same faults each time
		r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		chosen := all[:min(*choose, len(all))]
		slices.SortFunc(chosen, func(a, b fault) int {
			return cmp.Or(cmp.Compare(a.file, b.file), cmp.Compare(a.line, b.line), cmp.Compare(a.column, b.column))
		})
		for _, f := range slices.Compact(chosen) { // a && b && c has two operators at one place
			fmt.Println(f)
		}
		return
	}
	if err := run(flag.Arg(0), flag.Args()[1:]); err != nil {
		log.Fatal(err)
	}
}

func run(list string, packages []string) error {
	text, err := os.ReadFile(list)
	if err != nil {
		return err
	}
	chosen := strings.Fields(string(text))
	folder, err := os.MkdirTemp("", "mutants")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	all, err := mutate(chosen, folder)
	if err != nil {
		return err
	}
	for _, f := range chosen {
		if !slices.ContainsFunc(all, func(a fault) bool { return a.String() == f }) {
			return fmt.Errorf("%s is not in the code any more: choose again", f)
		}
	}
	var binaries []string
	for i, p := range packages {
		binary := filepath.Join(folder, strconv.Itoa(i)+".test")
		build := exec.Command("go", "test", "-c", "-overlay="+filepath.Join(folder, "overlay.json"), "-o", binary, p)
		build.Dir, build.Stderr = *root, os.Stderr
		if err := build.Run(); err != nil {
			return fmt.Errorf("building the tests of %s: %w", p, err)
		}
		binaries = append(binaries, binary)
	}
	found := 0
	for n, f := range append([]string{"no fault"}, chosen...) {
		var failed []string
		for i, binary := range binaries {
			failed = append(failed, failures(n-1, filepath.Join(*root, packages[i]), binary)...)
		}
		if len(failed) > 0 {
			found++
		}
		fmt.Printf("%s\t%s\n", f, strings.Join(failed, " "))
	}
	fmt.Printf("%d of %d found\n", found, len(chosen))
	return nil
}

// failures returns the names of the tests in a binary that fail when a fault is switched on.
func failures(n int, folder, binary string) (failed []string) {
	ctx, cancel := context.WithTimeout(context.Background(), *limit)
	defer cancel()
	test := exec.CommandContext(ctx, binary, "-test.v", "-test.timeout=0", fmt.Sprintf("-test.failfast=%v", *first))
	test.Dir, test.Env = folder, append(os.Environ(), "PLEG_MUTANT="+strconv.Itoa(n))
	out, err := test.CombinedOutput()
	for _, m := range regexp.MustCompile(`(?m)^--- FAIL: (\w+)`).FindAllSubmatch(out, -1) {
		failed = append(failed, string(m[1]))
	}
	if err != nil && len(failed) == 0 { // a panic, or a timeout
		last := "?"
		for _, m := range regexp.MustCompile(`(?m)^=== RUN +(\w+)`).FindAllSubmatch(out, -1) {
			last = string(m[1])
		}
		failed = append(failed, last+"!")
	}
	return failed
}

// mutate returns all faults that can be inserted into the core. Unless folder is "", it also writes
// a build overlay with the chosen faults into the folder. In a program with this overlay,
// PLEG_MUTANT=N switches on chosen[N].
func mutate(chosen []string, folder string) (all []fault, err error) {
	number := make(map[string]int)
	for i, f := range chosen {
		number[f] = i
	}
	overlay := make(map[string]string)
	for _, dir := range core {
		files, err := filepath.Glob(filepath.Join(*root, dir, "*.go"))
		if err != nil {
			return nil, err
		}
		name := ""
		for _, path := range files {
			if strings.HasSuffix(path, "_test.go") {
				continue
			}
			fset := token.NewFileSet()
			file, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
			if err != nil {
				return nil, err
			}
			name = file.Name.Name
			relative, err := filepath.Rel(*root, path)
			if err != nil {
				return nil, err
			}
			changed := false
			astutil.Apply(file, nil, func(c *astutil.Cursor) bool {
				for _, operator := range operators(c.Node(), c.Parent()) {
					at := fset.Position(c.Node().Pos())
					f := fault{relative, at.Line, at.Column, operator}
					all = append(all, f)
					n, is := number[f.String()]
					if is {
						apply(c, n)
						changed = true
					}
				}
				return true
			})
			if changed {
				var text bytes.Buffer
				if err := format.Node(&text, fset, file); err != nil {
					return nil, err
				}
				if err := add(overlay, folder, path, text.Bytes()); err != nil {
					return nil, err
				}
			}
		}
		if folder != "" {
			text := fmt.Sprintf("package %s\n\nimport \"os\"\n\nvar mutantOn = os.Getenv(\"PLEG_MUTANT\")\n\n"+
				"func mutant(n string) bool { return n == mutantOn }\n", name)
			if err := add(overlay, folder, filepath.Join(*root, dir, "zzmutant.go"), []byte(text)); err != nil {
				return nil, err
			}
		}
	}
	if folder == "" {
		return all, nil
	}
	text, err := json.Marshal(map[string]any{"Replace": overlay})
	if err != nil {
		return nil, err
	}
	return all, os.WriteFile(filepath.Join(folder, "overlay.json"), text, 0o600)
}

func add(overlay map[string]string, folder, path string, text []byte) error {
	path, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	replacement := filepath.Join(folder, strconv.Itoa(len(overlay))+".go")
	overlay[path] = replacement
	return os.WriteFile(replacement, text, 0o600)
}

// operators returns the operators of the faults that a node can have.
func operators(n, parent ast.Node) []string {
	switch n := n.(type) {
	case *ast.IfStmt:
		return []string{"negate"}
	case *ast.BinaryExpr:
		switch n.Op {
		case token.LAND:
			return []string{"or"}
		case token.LOR:
			return []string{"and"}
		default:
		}
	case *ast.ExprStmt, *ast.IncDecStmt:
		if _, is := parent.(*ast.BlockStmt); is {
			return []string{"drop"}
		}
	case *ast.AssignStmt:
		if _, is := parent.(*ast.BlockStmt); is && n.Tok != token.DEFINE {
			return []string{"drop"}
		}
	}
	return nil
}

// apply inserts a fault into the tree.
func apply(c *astutil.Cursor, n int) {
	on := &ast.CallExpr{Fun: ast.NewIdent("mutant"),
		Args: []ast.Expr{&ast.BasicLit{Kind: token.STRING, Value: strconv.Quote(strconv.Itoa(n))}}}
	switch node := c.Node().(type) {
	case *ast.IfStmt:
		node.Cond = &ast.BinaryExpr{X: on, Op: token.NEQ, Y: &ast.ParenExpr{X: node.Cond}}
	case *ast.BinaryExpr:
		other := map[token.Token]token.Token{token.LAND: token.LOR, token.LOR: token.LAND}[node.Op]
		either := func(x, y ast.Expr, op token.Token) ast.Expr {
			return &ast.ParenExpr{X: &ast.BinaryExpr{X: x, Op: op, Y: y}}
		}
		c.Replace(either(
			either(on, either(node.X, node.Y, other), token.LAND),
			either(&ast.UnaryExpr{Op: token.NOT, X: on}, either(node.X, node.Y, node.Op), token.LAND), token.LOR))
	case ast.Stmt:
		c.Replace(&ast.IfStmt{Cond: &ast.UnaryExpr{Op: token.NOT, X: on}, Body: &ast.BlockStmt{List: []ast.Stmt{node}}})
	}
}
