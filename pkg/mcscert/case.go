package mcscert

import (
	"slices"
	"strings"
	"time"
)

// Case states who renews the certificates, and how that was decided.
type Case string

// The cases, as 'certs status -o json' names them; see caseTexts for what each means.
const (
	CaseConfigured     Case = "Configured"
	CaseFolder         Case = "Folder"
	CaseOurs           Case = "Ours"
	CaseNoMachineSets  Case = "NoMachineSets"
	CaseOldOperator    Case = "OldOperator"
	CaseOperatorToCome Case = "OperatorToCome"
	CaseOperator       Case = "MachineConfigOperator"
	CaseSomebody       Case = "Somebody"
)

var caseTexts = map[Case]string{
	CaseConfigured: "the verifier renews them, as certificates.rotate says",
	CaseFolder:     "'certs rotate', by hand or by a timer",
	CaseOurs:       "the verifier renews them: it made the CA",
	CaseNoMachineSets: "the verifier renews them: there are no MachineSets, without which the machine-config-operator " +
		"does not",
	CaseOldOperator: "the verifier renews them: there are MachineSets, and the machine-config-operator has made no CA," +
		" as before 4.19",
	CaseOperatorToCome: "nobody yet: there are MachineSets, so a machine-config-operator of 4.19 or later will make a " +
		"CA;" +
		" if it does not, the verifier will",
	CaseOperator: "the machine-config-operator renews them",
	CaseSomebody: "somebody else renews them, or nobody: the CA has no marks of the verifier's nor of the " +
		"machine-config-operator's",
}

// String returns a sentence for a person.
func (c Case) String() string {
	if text, ok := caseTexts[c]; ok {
		return text
	}
	return string(c)
}

// Ours reports whether the verifier renews.
func (c Case) Ours() bool {
	return slices.Contains([]Case{CaseConfigured, CaseFolder, CaseOurs, CaseNoMachineSets, CaseOldOperator}, c)
}

const (
	// OwningComponent is the value of the annotation openshift.io/owning-component on the
	// objects that the verifier writes.
	OwningComponent = "mcs-attest"
	// OperatorDelay is how long the verifier waits for the machine-config-operator to make a CA.
	OperatorDelay = 30 * time.Minute
)

// MadeBy decides the case from the marks on the Secret of the CA: its annotation
// openshift.io/owning-component and its field managers. The last writer has left its own:
// library-go writes the annotation in each pass.
func MadeBy(component string, managers []string) Case {
	operator := func(manager string) bool { return strings.HasPrefix(manager, "machine-config-") }
	switch {
	case component == OwningComponent:
		return CaseOurs
	case component != "" || slices.ContainsFunc(managers, operator):
		return CaseOperator
	}
	return CaseSomebody
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
