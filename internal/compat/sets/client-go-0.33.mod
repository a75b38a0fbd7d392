// client-go 0.33 and what it asks for.
module compat

go 1.25.0

require (
	k8s.io/api v0.33.0
	k8s.io/apimachinery v0.33.0
	k8s.io/client-go v0.33.0
)
