// SPDX-License-Identifier: Apache-2.0

package mcscert

import (
	"slices"
	"strings"
	"time"
)

// Case tells who renews the certificates, and how that was determined.
type Case string

// The cases in the output of 'certs status -o json'; see caseTexts for their meaning.
const (
	CaseConfigured     Case = "Configured"
	CaseFolder         Case = "Folder"
	CaseOurs           Case = "Ours"
	CaseNoMachineSets  Case = "NoMachineSets"
	CaseOldOperator    Case = "OldOperator"
	CaseOperatorToCome Case = "OperatorToCome"
	CaseOperator       Case = "MachineConfigOperator"
	CaseOther          Case = "Somebody"
)

var caseTexts = map[Case]string{
	CaseConfigured: "the verifier renews them, because certificates.rotate is set",
	CaseFolder:     "'certs rotate', by hand or by a timer",
	CaseOurs:       "the verifier renews them: it made the CA",
	CaseNoMachineSets: "the verifier renews them: no MachineSets exist, and without them the machine-config-operator " +
		"does not renew",
	CaseOldOperator: "the verifier renews them: MachineSets exist, but the machine-config-operator has not created a CA," +
		" as before 4.19",
	CaseOperatorToCome: "not decided yet: MachineSets exist, so a machine-config-operator of 4.19 or later will create " +
		"a CA; if it does not, the verifier will",
	CaseOperator: "the machine-config-operator renews them",
	CaseOther: "a third party renews them, or no program does: neither the verifier nor the machine-config-operator " +
		"marked the CA",
}

// String returns a sentence for administrators.
func (c Case) String() string {
	if text, ok := caseTexts[c]; ok {
		return text
	}
	return string(c)
}

// Ours reports whether the verifier renews the certificates.
func (c Case) Ours() bool {
	return slices.Contains([]Case{CaseConfigured, CaseFolder, CaseOurs, CaseNoMachineSets, CaseOldOperator}, c)
}

const (
	// OwningComponent is the value of the annotation openshift.io/owning-component on the
	// objects that the verifier writes.
	OwningComponent = "mcs-attest"
	// OperatorDelay is how long the verifier waits for the machine-config-operator to create a CA.
	OperatorDelay = 30 * time.Minute
)

// MadeBy decides the case from the marks on the Secret of the CA: its annotation
// openshift.io/owning-component and its field managers. The last writer has left its own,
// because each writes the annotation in each pass.
func MadeBy(component string, managers []string) Case {
	operator := func(manager string) bool { return strings.HasPrefix(manager, "machine-config-") }
	switch {
	case component == OwningComponent:
		return CaseOurs
	case component != "" || slices.ContainsFunc(managers, operator):
		return CaseOperator
	}
	return CaseOther
}

// WithoutCA decides the case of a cluster whose CA has been missing for some time.
func WithoutCA(machineSets bool, missing time.Duration) Case {
	switch {
	case !machineSets:
		return CaseNoMachineSets
	case missing < OperatorDelay:
		return CaseOperatorToCome
	}
	return CaseOldOperator
}
