package approver

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// issued denies a second key for the name of a Machine. It does not read the status of the record. Only an
// administrator writes the spec: while it grants another attestation, the keys may be two.
func (x *run) issued() error {
	all, err := x.w.Issued(x.ctx, x.Node)
	if err != nil {
		return unread(err, "reading the approved requests for node %.253q", x.Node)
	}
	former := ""
	granted := (&machine.Machine{Enrolment: x.record}).Granted(x.now)
	for _, r := range all {
		switch {
		case r.PublicKeySHA256 == x.PublicKeySHA256 || r.Created.Sub(x.Machine.Created) <= -clockSkew:
		case granted && (former == "" || former == r.PublicKeySHA256):
			former = r.PublicKeySHA256
		default:
			return reason.Deny(reason.CSRKeyChanged, "request %.253s for node %s, with the key %s, was approved before%s",
				r.Name, x.Node, r.PublicKeySHA256, x.afterReinstallation(r.Name))
		}
	}
	return nil
}

// afterReinstallation is what an administrator does about an approved request. A kubelet whose request was deleted
// makes another one. The API accepts any name of a request, so the command has only names that a shell does not expand.
func (x *run) afterReinstallation(approved string) string {
	for _, name := range []string{approved, x.r.Name} {
		if len(validation.IsDNS1123Subdomain(name)) > 0 {
			return ""
		}
	}
	return fmt.Sprintf("; if the machine was reinstalled, run 'kubectl delete csr %s %s': its kubelet asks again",
		approved, x.r.Name)
}
