// SPDX-License-Identifier: Apache-2.0

package appraisal

import (
	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2"
)

// Tied calls tied, for a table of cases.
func Tied(e v1alpha1.Endorsement, endorsed *tpm2.Endorsement, bound evidence.Kind, approval v1alpha1.Approval) bool {
	a := &appraisal{endorsement: e, endorsed: endorsed,
		statements: []evidence.Statement{{Kind: bound, Bound: bound != 0}}}
	a.Policy.Approval = approval
	return a.tied()
}
