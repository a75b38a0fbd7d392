// Package mixin checks the rules, the alerts, the runbooks and the dashboard in plegwatch/mixin/.
// Every query must parse, and name what the library exports. Debian's promtool tests the alerts
// over time. Debian's Prometheus tests on plegwatch and nodeagent that they fire and resolve.
package mixin
