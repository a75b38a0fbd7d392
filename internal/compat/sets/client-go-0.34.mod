// client-go 0.34 and what it asks for.
module compat

go 1.25.0

require (
	k8s.io/api v0.34.0
	k8s.io/apimachinery v0.34.0
	k8s.io/client-go v0.34.0
)
