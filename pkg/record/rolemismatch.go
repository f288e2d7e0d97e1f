// SPDX-License-Identifier: Apache-2.0

package record

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
)

// RoleMismatch records that the machine's Node has a role that its pool does not have.
// An empty text records that it no longer has it. It returns nil if nothing changes.
func RoleMismatch(rec *v1alpha1.MachineAttestation, text string, now time.Time) *v1alpha1.MachineAttestation {
	if rec == nil {
		return nil
	}
	if meta.IsStatusConditionTrue(rec.Status.Conditions, v1alpha1.ConditionRoleMismatch) == (text != "") {
		return nil
	}
	next := rec.DeepCopy()
	if text == "" {
		condition(&next.Status, now, v1alpha1.ConditionRoleMismatch, metav1.ConditionFalse, "RoleOfPool",
			"the Node no longer has a control-plane role")
		return next
	}
	note(&next.Status, now, "RoleMismatch", "", "", truncate(text))
	condition(&next.Status, now, v1alpha1.ConditionRoleMismatch, metav1.ConditionTrue, "ControlPlaneRole", truncate(text))
	return next
}
