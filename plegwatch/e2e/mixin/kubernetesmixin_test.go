package mixin_test

import "strings"

// mixinRule is the name of kubernetes-mixin's recording rule. testdata/kubernetes-mixin.yaml
// contains the rule and the alert that uses it.
const mixinRule = "node_quantile:kubelet_pleg_relist_duration_seconds:histogram_quantile"

// mixinPanels returns queries of kubernetes-mixin's dashboard "Kubernetes / Kubelet", for the
// metrics that the library exports. It replaces the rate interval with the given interval. It
// selects the cluster "" and all instances.
func mixinPanels(interval string) (queries []query) {
	const selector = `cluster="", job="kubelet", metrics_path="/metrics"`
	fill := strings.NewReplacer("SELECTED", selector+`, instance=~".*"`, "ALL", selector, "INTERVAL", interval)
	for _, q := range []query{
		{"Running Kubelets", `sum(kubelet_node_name{ALL})`},
		{"Running Pods", `sum(kubelet_running_pods{SELECTED})`},
		{"Running Containers", `sum(kubelet_running_containers{SELECTED})`},
		{"Operation Rate", `sum(rate(kubelet_runtime_operations_total{SELECTED}[INTERVAL])) by (operation_type, instance)`},
		{"Operation Error Rate",
			`sum(rate(kubelet_runtime_operations_errors_total{SELECTED}[INTERVAL])) by (instance, operation_type)`},
		{"Operation Duration 99th quantile", `histogram_quantile(0.99, ` +
			`sum(rate(kubelet_runtime_operations_duration_seconds_bucket{SELECTED}[INTERVAL])) ` +
			`by (instance, operation_type, le))`},
		{"PLEG relist rate", `sum(rate(kubelet_pleg_relist_duration_seconds_count{SELECTED}[INTERVAL])) by (instance)`},
		{"PLEG relist interval", `histogram_quantile(0.99, ` +
			`sum(rate(kubelet_pleg_relist_interval_seconds_bucket{SELECTED}[INTERVAL])) by (instance, le))`},
		{"PLEG relist duration", `histogram_quantile(0.99, ` +
			`sum(rate(kubelet_pleg_relist_duration_seconds_bucket{SELECTED}[INTERVAL])) by (instance, le))`},
	} {
		queries = append(queries, query{"kubernetes-mixin, " + q.where, fill.Replace(q.expr)})
	}
	return queries
}
