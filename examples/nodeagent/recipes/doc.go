// Package recipes has the recipes of docs/GUIDE.md that need client-go or OpenTelemetry, as
// examples that are run.
package recipes
