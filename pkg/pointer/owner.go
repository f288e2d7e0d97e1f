// SPDX-License-Identifier: Apache-2.0

package pointer

import (
	"fmt"
	"strings"
)

// UserData is the metadata of a user-data Secret.
type UserData struct {
	Name        string
	Labels      map[string]string
	Annotations map[string]string
	Owners      []string // of each ownerReference, "Kind/name"
}

// AnnotationHandsOff on a user-data Secret, with any value, prevents the verifier from adding the
// provisioning token.
const AnnotationHandsOff = "mcs-attest.dev/leave-alone"

// Labels and annotations that name a program which reverts changes to the Secret.
var (
	managedByLabels = []string{
		"machineconfiguration.openshift.io/managed-ca-bundle-derived-from-configmap", // the machine-config-operator
		"app.kubernetes.io/managed-by", // Helm and others
		"argocd.argoproj.io/instance",
		"kustomize.toolkit.fluxcd.io/name",
	}
	managedByAnnotations = []string{"argocd.argoproj.io/tracking-id", "meta.helm.sh/release-name"}
)

// Managed returns why another program manages this Secret, or "". That program would revert a
// change, or the change would break its work. The machine-config-operator rewrites each
// NAME-managed Secret on every sync. In the other Secrets it changes only the certificate authority
// and keeps unknown content.
func (u UserData) Managed() (why string) {
	switch {
	case strings.HasSuffix(u.Name, "-managed"):
		return "the machine-config-operator writes the Secrets whose names end in -managed"
	case len(u.Owners) > 0:
		return fmt.Sprintf("it belongs to %s", strings.Join(u.Owners, ", "))
	}
	for _, name := range managedByLabels {
		if _, ok := u.Labels[name]; ok {
			return fmt.Sprintf("its label %s shows that another program manages it", name)
		}
	}
	for _, name := range managedByAnnotations {
		if _, ok := u.Annotations[name]; ok {
			return fmt.Sprintf("its annotation %s shows that another program manages it", name)
		}
	}
	if _, ok := u.Annotations[AnnotationHandsOff]; ok {
		return fmt.Sprintf("an administrator set the annotation %s", AnnotationHandsOff)
	}
	return ""
}
