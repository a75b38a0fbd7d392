package mixin_test

import (
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
)

// mixinDir is the directory of the files that this package checks.
const mixinDir = "../../mixin"

var promql = parser.NewParser(parser.Options{})

func readFile(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// rulesOf parses a rule file and returns its rules.
func rulesOf(t *testing.T, name string) (rules []rulefmt.Rule) {
	t.Helper()
	groups, errs := rulefmt.ParseFile(name, false, model.LegacyValidation, promql, slog.New(slog.DiscardHandler))
	for _, err := range errs {
		t.Error(err)
	}
	if len(errs) > 0 {
		t.FailNow()
	}
	for _, g := range groups.Groups {
		rules = append(rules, g.Rules...)
	}
	return rules
}

func recordingRules(t *testing.T) []rulefmt.Rule {
	t.Helper()
	return rulesOf(t, filepath.Join(mixinDir, "rules.yaml"))
}

func alerts(t *testing.T) []rulefmt.Rule {
	t.Helper()
	return rulesOf(t, filepath.Join(mixinDir, "alerts.yaml"))
}

// dashboard contains the parts of a Grafana dashboard that the tests read.
type dashboard struct {
	Panels     []panel `json:"panels"`
	Templating struct {
		List []struct {
			Name  string          `json:"name"`
			Type  string          `json:"type"`
			Query json.RawMessage `json:"query"`
		} `json:"list"`
	} `json:"templating"`
}

type panel struct {
	ID          int    `json:"id"`
	Type        string `json:"type"`
	Title       string `json:"title"`
	Description string `json:"description"`
	Datasource  struct {
		UID string `json:"uid"`
	} `json:"datasource"`
	GridPos struct{ X, Y, W, H int } `json:"gridPos"`
	Targets []struct {
		RefID string `json:"refId"`
		Expr  string `json:"expr"`
	} `json:"targets"`
}

func readDashboard(t *testing.T) (d dashboard) {
	t.Helper()
	if err := json.Unmarshal([]byte(readFile(t, filepath.Join(mixinDir, "dashboard.json"))), &d); err != nil {
		t.Fatal(err)
	}
	return d
}

// query is a PromQL expression and the place where it stands.
type query struct{ where, expr string }

// panelQueries returns the queries of the dashboard's panels. It replaces Grafana's rate interval
// with the given interval, and each variable with a pattern that matches every value.
func (d dashboard) panelQueries(interval string) (queries []query) {
	fill := strings.NewReplacer("$__rate_interval", interval, "$cluster", ".*", "$job", ".*", "$node", ".*")
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			queries = append(queries, query{"panel " + p.Title + " " + target.RefID, fill.Replace(target.Expr)})
		}
	}
	return queries
}

var labelValues = regexp.MustCompile(`^label_values\((.+), (\w+)\)$`)

// variableQueries returns the metric selectors in the queries of the dashboard's variables.
func (d dashboard) variableQueries(t *testing.T) (queries []query) {
	t.Helper()
	for _, v := range d.Templating.List {
		if v.Type != "query" {
			continue
		}
		var q struct {
			Query string `json:"query"`
		}
		if err := json.Unmarshal(v.Query, &q); err != nil {
			t.Fatal(err)
		}
		parts := labelValues.FindStringSubmatch(q.Query)
		if parts == nil || parts[2] != v.Name {
			t.Fatalf("variable %s asks %q", v.Name, q.Query)
		}
		queries = append(queries, query{"variable " + v.Name, parts[1]})
	}
	return queries
}

// allQueries returns the queries of the rules, the alerts and the dashboard.
func allQueries(t *testing.T) (queries []query) {
	t.Helper()
	for _, r := range append(recordingRules(t), alerts(t)...) {
		queries = append(queries, query{r.Record + r.Alert, r.Expr})
	}
	d := readDashboard(t)
	return append(append(queries, d.panelQueries("5m")...), d.variableQueries(t)...)
}
