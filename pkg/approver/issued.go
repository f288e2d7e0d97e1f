// SPDX-License-Identifier: Apache-2.0

package approver

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// maxInterrupted is the number of interrupted first boots after which a machine may still join. Each of them may have
// left a certificate that no kubelet uses. Only those of the last hour count, because Kubernetes then deletes an
// approved request.
const maxInterrupted = 2

// issued denies a second key for the name of a Machine. It does not depend on the record's status. Only administrators
// write the spec: while it grants another attestation, two keys are permitted. A request of the verifier precedes the
// config, so the machine may have lost its key since. The caller has checked that no Node has the name.
func (x *run) issued() error {
	all, err := x.w.Issued(x.ctx, x.Node)
	if err != nil {
		return unread(err, "read the approved requests for node %.253q", x.Node)
	}
	former := ""
	granted := (&machine.Machine{Enrollment: x.record}).Granted(x.now)
	for _, r := range all {
		switch {
		case r.PublicKeySHA256 == x.PublicKeySHA256 || r.Created.Sub(x.Machine.Created) <= -clockSkew:
		case x.c.issues(r) && len(x.Superseded) < maxInterrupted:
			x.Superseded = append(x.Superseded, r.Name)
		case granted && (former == "" || former == r.PublicKeySHA256):
			former = r.PublicKeySHA256
		default:
			return reason.Deny(reason.CSRKeyChanged, "request %.253s for node %s, with the key %s, was already approved%s",
				r.Name, x.Node, r.PublicKeySHA256, x.afterReinstallation(r.Name))
		}
	}
	return nil
}

// afterReinstallation returns how an administrator deletes an approved request. A kubelet whose request was deleted
// makes another one. Request names are arbitrary, so the command contains only names that a shell does not expand.
func (x *run) afterReinstallation(approved string) string {
	for _, name := range []string{approved, x.r.Name} {
		if len(validation.IsDNS1123Subdomain(name)) > 0 {
			return ""
		}
	}
	return fmt.Sprintf("; if the machine was reinstalled, run 'kubectl delete csr %s %s': its kubelet makes a new request",
		approved, x.r.Name)
}
