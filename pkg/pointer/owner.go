package pointer

import (
	"fmt"
	"strings"
)

// UserData is what its Secret says of user data, besides the content.
type UserData struct {
	Name        string
	Labels      map[string]string
	Annotations map[string]string
	Owners      []string // of each ownerReference, "Kind/name"
}

// AnnotationHandsOff on a user-data Secret, whatever its value, keeps the
// provisioning token out of it.
const AnnotationHandsOff = "mcs-attest.dev/leave-alone"

// managedByLabels name a program that writes the Secret again when somebody else
// has; managedByAnnotations likewise.
var (
	managedByLabels = []string{
		"machineconfiguration.openshift.io/managed-ca-bundle-derived-from-configmap", // the machine-config-operator
		"app.kubernetes.io/managed-by", // Helm and others
		"argocd.argoproj.io/instance",
		"kustomize.toolkit.fluxcd.io/name",
	}
	managedByAnnotations = []string{"argocd.argoproj.io/tracking-id", "meta.helm.sh/release-name"}
)

// Managed says why somebody else writes this Secret, so that a change to it would
// be undone or would undo theirs; "" if nobody does. The machine-config-operator
// writes each NAME-managed one anew whenever it looks at it; of the others it
// changes the certificate authority alone, and keeps what it does not know.
func (u UserData) Managed() (why string) {
	switch {
	case strings.HasSuffix(u.Name, "-managed"):
		return "the machine-config-operator writes the Secrets whose names end in -managed"
	case len(u.Owners) > 0:
		return fmt.Sprintf("it belongs to %s", strings.Join(u.Owners, ", "))
	}
	for _, name := range managedByLabels {
		if _, ok := u.Labels[name]; ok {
			return fmt.Sprintf("its label %s says that another program writes it", name)
		}
	}
	for _, name := range managedByAnnotations {
		if _, ok := u.Annotations[name]; ok {
			return fmt.Sprintf("its annotation %s says that another program writes it", name)
		}
	}
	if _, ok := u.Annotations[AnnotationHandsOff]; ok {
		return fmt.Sprintf("an administrator put the annotation %s on it", AnnotationHandsOff)
	}
	return ""
}
