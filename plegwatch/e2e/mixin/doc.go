// Package mixin checks the rules, alerts, runbooks and dashboard in plegwatch/mixin/. Each query
// must parse and use only what the library exports. Debian's promtool tests the alerts over hours.
// Debian's Prometheus tests that they fire and resolve for running agents.
package mixin
