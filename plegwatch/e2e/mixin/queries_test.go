package mixin_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/promql/parser"
)

// targetLabels contains the labels that Prometheus adds to each series, and le, the label of
// histogram buckets. alertname is a label of ALERTS.
var targetLabels = []string{"cluster", "job", "instance", "le", "alertname"}

// agents contains metrics of the agent's process, and the metrics up and ALERTS, which Prometheus adds.
var agents = []string{"up", "ALERTS", "pleg_build_info", "process_resident_memory_bytes"}

// Each query of the rules and the dashboard parses. It uses only recorded rules and exported
// metrics, with their labels and reasons.
func TestQueriesNameWhatIsExported(t *testing.T) {
	metrics := exported(t)
	// records contains, for each recording rule, the labels that the rule sets or groups by.
	records := make(map[string][]string)
	for _, r := range recordingRules(t) {
		for l := range r.Labels {
			records[r.Record] = append(records[r.Record], l)
		}
		records[r.Record] = append(records[r.Record], groupings(parse(t, query{r.Record, r.Expr}))...)
	}
	for _, q := range allQueries(t) {
		known := slices.Clone(targetLabels)
		expr := parse(t, q)
		for _, s := range selectors(expr) {
			m, isExported := metrics[s.Name]
			own, isRecorded := records[s.Name]
			if !isExported && !isRecorded && !slices.Contains(agents, s.Name) {
				t.Errorf("%s: no metric is called %q", q.where, s.Name)
			}
			for l := range m.labels {
				own = append(own, l)
			}
			known = append(known, own...)
			for _, match := range s.LabelMatchers {
				if match.Name == model.MetricNameLabel || slices.Contains(targetLabels, match.Name) {
					continue
				}
				if !slices.Contains(own, match.Name) {
					t.Errorf("%s: %s has no label %q", q.where, s.Name, match.Name)
				}
				if match.Name != "reason" {
					continue
				}
				of := s.Name
				if isRecorded {
					of = "pleg_container_exits_total"
				}
				for _, reason := range strings.Split(match.Value, "|") {
					if !metrics[of].labels["reason"][reason] {
						t.Errorf("%s: %s has no reason %q", q.where, of, reason)
					}
				}
			}
		}
		for _, l := range groupings(expr) {
			// The labels node and version are also allowed: label_replace creates node, and
			// pleg_build_info contains version.
			if !slices.Contains(known, l) && l != "node" && l != "version" {
				t.Errorf("%s: nothing has the label %q", q.where, l)
			}
		}
	}
}

// Each exported metric is used in a rule or on the dashboard.
func TestEveryMetricIsUsed(t *testing.T) {
	used := make(map[string]bool)
	metrics := exported(t)
	for _, q := range allQueries(t) {
		for _, s := range selectors(parse(t, q)) {
			used[metrics[s.Name].family] = true
		}
	}
	for _, m := range metrics {
		if !used[m.family] {
			t.Errorf("%s is on no panel and in no rule", m.family)
			used[m.family] = true
		}
	}
}

func parse(t *testing.T, q query) parser.Expr {
	t.Helper()
	expr, err := promql.ParseExpr(q.expr)
	if err != nil {
		t.Fatalf("%s: %v", q.where, err)
	}
	return expr
}

func selectors(expr parser.Expr) (all []*parser.VectorSelector) {
	parser.Inspect(expr, func(n parser.Node, _ []parser.Node) error {
		if s, is := n.(*parser.VectorSelector); is {
			all = append(all, s)
		}
		return nil
	})
	return all
}

// groupings returns the labels that an expression groups by, joins on or includes.
func groupings(expr parser.Expr) (all []string) {
	parser.Inspect(expr, func(n parser.Node, _ []parser.Node) error {
		switch n := n.(type) {
		case *parser.AggregateExpr:
			all = append(all, n.Grouping...)
		case *parser.BinaryExpr:
			if m := n.VectorMatching; m != nil {
				all = append(append(all, m.MatchingLabels...), m.Include...)
			}
		}
		return nil
	})
	return all
}
