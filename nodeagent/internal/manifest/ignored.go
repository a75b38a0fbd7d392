package manifest

import (
	stdjson "encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const (
	deletionCostAnnotation = "controller.kubernetes.io/pod-deletion-cost"
	tolerationsAnnotation  = "scheduler.alpha.kubernetes.io/tolerations"

	required  = "requiredDuringSchedulingIgnoredDuringExecution"
	preferred = "preferredDuringSchedulingIgnoredDuringExecution"
)

// ignored checks the fields and annotations that only a scheduler or a controller uses. The agent
// ignores them, but the kubelet refuses a pod with an error in them.
func (v *validator) ignored(pod *v1.Pod) {
	at, annotations := field.NewPath("spec"), field.NewPath("metadata", "annotations")
	for i, name := range pod.Finalizers {
		standard := []string{string(v1.FinalizerKubernetes), metav1.FinalizerOrphanDependents,
			metav1.FinalizerDeleteDependents}
		v.check(strings.Contains(name, "/") || slices.Contains(standard, name), field.Invalid(
			field.NewPath("metadata", "finalizers").Index(i), name, "must be a standard name or contain a domain"))
	}
	if cost, found := pod.Annotations[deletionCostAnnotation]; found {
		n, err := strconv.ParseInt(cost, 10, 32)
		negative := len(cost) > 1 && cost[0] == '-' // the kubelet accepts -0 and -01
		v.check(err == nil && (negative || cost == strconv.FormatInt(n, 10)),
			field.Invalid(annotations.Key(deletionCostAnnotation), cost, "must be a 32bit integer"))
	}
	if text := pod.Annotations[tolerationsAnnotation]; text != "" {
		var tolerations []v1.Toleration
		at := annotations.Key(tolerationsAnnotation)
		if err := stdjson.Unmarshal([]byte(text), &tolerations); err != nil {
			v.errs = append(v.errs, field.Invalid(at, text, err.Error()))
		}
		v.tolerations(tolerations, at)
	}
	spec := &pod.Spec
	v.errs = append(v.errs, metav1validation.ValidateLabels(spec.NodeSelector, at.Child("nodeSelector"))...)
	if spec.PreemptionPolicy != nil {
		exactlyOneOf(v, *spec.PreemptionPolicy, at.Child("preemptionPolicy"), v1.PreemptLowerPriority, v1.PreemptNever)
	}
	v.tolerations(spec.Tolerations, at.Child("tolerations"))
	v.spread(spec.TopologySpreadConstraints, at.Child("topologySpreadConstraints"))
	if spec.Affinity == nil {
		return
	}
	at = at.Child("affinity")
	if a := spec.Affinity.NodeAffinity; a != nil {
		v.nodeAffinity(a, at.Child("nodeAffinity"))
	}
	if a := spec.Affinity.PodAffinity; a != nil {
		v.podTerms(a.RequiredDuringSchedulingIgnoredDuringExecution, a.PreferredDuringSchedulingIgnoredDuringExecution,
			at.Child("podAffinity"))
	}
	if a := spec.Affinity.PodAntiAffinity; a != nil {
		v.podTerms(a.RequiredDuringSchedulingIgnoredDuringExecution, a.PreferredDuringSchedulingIgnoredDuringExecution,
			at.Child("podAntiAffinity"))
	}
}

func (v *validator) tolerations(tolerations []v1.Toleration, at *field.Path) {
	for i, t := range tolerations {
		at := at.Index(i)
		if t.Key != "" {
			v.errs = append(v.errs, metav1validation.ValidateLabelName(t.Key, at.Child("key"))...)
		}
		v.check(t.Key != "" || t.Operator == v1.TolerationOpExists,
			field.Invalid(at.Child("operator"), t.Operator, "must be Exists when `key` is empty"))
		v.check(t.TolerationSeconds == nil || t.Effect == v1.TaintEffectNoExecute,
			field.Invalid(at.Child("effect"), t.Effect, "must be NoExecute when `tolerationSeconds` is set"))
		oneOf(v, t.Operator, at.Child("operator"), v1.TolerationOpEqual, v1.TolerationOpExists)
		oneOf(v, t.Effect, at.Child("effect"), v1.TaintEffectNoSchedule, v1.TaintEffectPreferNoSchedule,
			v1.TaintEffectNoExecute)
		if t.Operator == v1.TolerationOpExists {
			v.check(t.Value == "", field.Invalid(at.Child("value"), t.Value, "must be empty when `operator` is Exists"))
		} else {
			v.valid(t.Value, validation.IsValidLabelValue(t.Value), at.Child("value"))
		}
	}
}

func (v *validator) spread(constraints []v1.TopologySpreadConstraint, at *field.Path) {
	kinds := sets.New[string]()
	for i, c := range constraints {
		at := at.Index(i)
		v.unique(kinds, fmt.Sprintf("{%s, %s}", c.TopologyKey, c.WhenUnsatisfiable), at)
		v.check(c.MaxSkew > 0, field.Invalid(at.Child("maxSkew"), c.MaxSkew, "must be greater than zero"))
		v.check(c.TopologyKey != "", field.Required(at.Child("topologyKey"), ""))
		exactlyOneOf(v, c.WhenUnsatisfiable, at.Child("whenUnsatisfiable"), v1.DoNotSchedule, v1.ScheduleAnyway)
		v.check(c.MinDomains == nil || *c.MinDomains > 0 && c.WhenUnsatisfiable == v1.DoNotSchedule, field.Invalid(
			at.Child("minDomains"), c.MinDomains, "must be greater than zero, and needs whenUnsatisfiable=DoNotSchedule"))
		for name, policy := range map[string]*v1.NodeInclusionPolicy{"nodeAffinityPolicy": c.NodeAffinityPolicy,
			"nodeTaintsPolicy": c.NodeTaintsPolicy} {
			if policy != nil {
				exactlyOneOf(v, *policy, at.Child(name), v1.NodeInclusionPolicyIgnore, v1.NodeInclusionPolicyHonor)
			}
		}
		v.selector(c.LabelSelector, c.MatchLabelKeys, nil, at)
	}
}

func (v *validator) nodeAffinity(a *v1.NodeAffinity, at *field.Path) {
	if r := a.RequiredDuringSchedulingIgnoredDuringExecution; r != nil {
		at := at.Child(required, "nodeSelectorTerms")
		v.check(len(r.NodeSelectorTerms) > 0, field.Required(at, ""))
		for i, term := range r.NodeSelectorTerms {
			v.nodeTerm(term, true, at.Index(i))
		}
	}
	for i, p := range a.PreferredDuringSchedulingIgnoredDuringExecution {
		at := at.Child(preferred).Index(i)
		v.weight(p.Weight, at)
		v.nodeTerm(p.Preference, false, at.Child("preference"))
	}
}

// nodeTerm checks a term of a node selector. In a preferred term, values may be no label values.
func (v *validator) nodeTerm(term v1.NodeSelectorTerm, labelValues bool, at *field.Path) {
	for i, e := range term.MatchExpressions {
		at := at.Child("matchExpressions").Index(i)
		v.errs = append(v.errs, metav1validation.ValidateLabelName(e.Key, at.Child("key"))...)
		exactlyOneOf(v, e.Operator, at.Child("operator"), v1.NodeSelectorOpIn, v1.NodeSelectorOpNotIn,
			v1.NodeSelectorOpExists, v1.NodeSelectorOpDoesNotExist, v1.NodeSelectorOpGt, v1.NodeSelectorOpLt)
		var ok bool
		switch n := len(e.Values); e.Operator {
		case v1.NodeSelectorOpExists, v1.NodeSelectorOpDoesNotExist:
			ok = n == 0
		case v1.NodeSelectorOpGt, v1.NodeSelectorOpLt:
			ok = n == 1
		default:
			ok = n > 0
		}
		v.check(ok, field.Invalid(at.Child("values"), e.Values, fmt.Sprintf("wrong number for %s", e.Operator)))
		for j, value := range e.Values {
			if labelValues {
				v.valid(value, validation.IsValidLabelValue(value), at.Child("values").Index(j))
			}
		}
	}
	for i, e := range term.MatchFields {
		at := at.Child("matchFields").Index(i)
		exactlyOneOf(v, e.Key, at.Child("key"), metav1.ObjectNameField)
		exactlyOneOf(v, e.Operator, at.Child("operator"), v1.NodeSelectorOpIn, v1.NodeSelectorOpNotIn)
		v.check(len(e.Values) == 1, field.Invalid(at.Child("values"), e.Values, "must be one value"))
		for j, value := range e.Values {
			v.valid(value, validation.IsDNS1123Subdomain(value), at.Child("values").Index(j))
		}
	}
}

func (v *validator) podTerms(terms []v1.PodAffinityTerm, weighted []v1.WeightedPodAffinityTerm, at *field.Path) {
	for i, term := range terms {
		v.podTerm(term, at.Child(required).Index(i))
	}
	for i, w := range weighted {
		at := at.Child(preferred).Index(i)
		v.weight(w.Weight, at)
		v.podTerm(w.PodAffinityTerm, at.Child("podAffinityTerm"))
	}
}

func (v *validator) podTerm(term v1.PodAffinityTerm, at *field.Path) {
	v.selector(term.LabelSelector, term.MatchLabelKeys, term.MismatchLabelKeys, at)
	v.errs = append(v.errs, metav1validation.ValidateLabelSelector(term.NamespaceSelector,
		metav1validation.LabelSelectorValidationOptions{}, at.Child("namespaceSelector"))...)
	for i, namespace := range term.Namespaces {
		v.valid(namespace, apivalidation.ValidateNamespaceName(namespace, false), at.Child("namespaces").Index(i))
	}
	v.errs = append(v.errs, metav1validation.ValidateLabelName(term.TopologyKey, at.Child("topologyKey"))...)
}

func (v *validator) weight(weight int32, at *field.Path) {
	v.check(weight >= 1 && weight <= 100,
		field.Invalid(at.Child("weight"), weight, validation.InclusiveRangeError(1, 100)))
}

// selector checks a label selector, and the label keys that extend it.
func (v *validator) selector(selector *metav1.LabelSelector, match, mismatch []string, at *field.Path) {
	v.errs = append(v.errs, metav1validation.ValidateLabelSelector(selector,
		metav1validation.LabelSelectorValidationOptions{}, at.Child("labelSelector"))...)
	for name, keys := range map[string][]string{"matchLabelKeys": match, "mismatchLabelKeys": mismatch} {
		at := at.Child(name)
		v.check(len(keys) == 0 || selector != nil, field.Forbidden(at, "must not be specified without labelSelector"))
		for i, key := range keys {
			v.errs = append(v.errs, metav1validation.ValidateLabelName(key, at.Index(i))...)
			v.check(name != "matchLabelKeys" || !slices.Contains(mismatch, key),
				field.Invalid(at.Index(i), key, "exists in both matchLabelKeys and mismatchLabelKeys"))
		}
	}
	if selector == nil {
		return
	}
	seen := sets.KeySet(selector.MatchLabels)
	for _, e := range selector.MatchExpressions { // the API server adds one for each of matchLabelKeys
		v.check(!seen.Has(e.Key) || !slices.Contains(match, e.Key),
			field.Invalid(at.Child("matchLabelKeys"), e.Key, "exists in both matchLabelKeys and labelSelector"))
		seen.Insert(e.Key)
	}
}

func (v *validator) resizePolicies(policies []v1.ContainerResizePolicy, at *field.Path) {
	resources := sets.New[string]()
	for i, p := range policies {
		at := at.Index(i)
		v.unique(resources, string(p.ResourceName), at)
		exactlyOneOf(v, p.ResourceName, at.Child("resourceName"), v1.ResourceCPU, v1.ResourceMemory)
		exactlyOneOf(v, p.RestartPolicy, at.Child("restartPolicy"), v1.NotRequired, v1.RestartContainer)
		v.check(v.pod.Spec.RestartPolicy != v1.RestartPolicyNever || p.RestartPolicy == v1.NotRequired, field.Invalid(
			at.Child("restartPolicy"), p.RestartPolicy, "must be NotRequired when the pod's restartPolicy is Never"))
	}
}
