// Package mixin checks the rules, the alerts, the runbooks and the dashboard in plegwatch/mixin/: that every
// query parses and names what the library exports, what the alerts do over time, with Debian's
// promtool, and that they fire and resolve, with Debian's Prometheus on plegwatch and
// nodeagent.
package mixin
