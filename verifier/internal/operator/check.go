// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/spelling"
	"github.com/mcs-attest/mcs-attest/verifier/internal/admin"
	"github.com/mcs-attest/mcs-attest/verifier/internal/hint"
)

// maxNear bounds the names that a hint lists.
const maxNear = 3

// CheckAgainst compares an enrollment that is to be written with the machines that exist, and with the pools
// that something names. The error says why it must not be written. With force, a pool or a Machine that looks
// misspelled is only a warning. An EK of another machine is an error all the same: both machines would be denied.
func CheckAgainst(s *admin.State, pools []string, m *v1alpha1.MachineAttestation,
	replace, force bool) (warnings []string, err error) {
	for _, own := range s.Machines {
		if isAbout(m, own.Name) && own.Record != nil && ofAnotherTPM(own.Record, m) && !replace {
			warnings = append(warnings, fmt.Sprintf("the record of %s is of the EK %s: another TPM is denied; --replace "+
				"is for a "+
				"TPM that was replaced", own.Name, own.Record.Identity.EKSHA256))
		}
	}
	for _, ek := range m.Spec.EKSHA256 {
		for _, other := range s.Machines {
			if isAbout(m, other.Name) {
				continue
			}
			if slices.ContainsFunc(other.EKSHA256, func(h string) bool { return strings.EqualFold(h, ek) }) {
				return nil, hint.New(fmt.Errorf("EK %s is enrolled for %s already: with two enrollments both machines are denied",
					ek, other.Name), "if the TPM moved, run 'forget %s' first", other.Name)
			}
			if r := other.Record; r != nil && strings.EqualFold(r.Identity.EKSHA256, ek) {
				return nil, hint.New(fmt.Errorf("EK %s is on the record of %s: another machine with it is denied", ek, other.Name),
					"if the TPM moved, run 'forget %s' first", other.Name)
			}
		}
	}
	warning := ""
	if m.Spec.MachineRef == nil {
		for _, other := range s.Machines {
			pools = append(pools, other.Pools...)
		}
		slices.Sort(pools)
		warning, err = CheckPool(slices.Compact(pools), m.Spec.Pool)
	} else {
		warning, err = checkMachine(s, m.Spec.MachineRef)
	}
	if err != nil && force {
		warning, err = err.Error(), nil
	}
	if warning != "" {
		warnings = append(warnings, warning)
	}
	return warnings, err
}

// CheckPool returns an error if a pool is probably a misspelled one of pools, and a warning if nothing names it.
func CheckPool(pools []string, pool string) (warning string, err error) {
	if pool == "" || len(pools) == 0 || slices.Contains(pools, pool) {
		return "", nil
	}
	text := fmt.Sprintf("no policy, config or machine names the pool %q", pool)
	if near := spelling.Near(pool, pools); len(near) > 0 {
		return "", hint.New(fmt.Errorf("%s", text), "did you mean %s? If not, add --force", either(near))
	}
	return text, nil
}

// digits are what Machines of one set differ in.
var digits = regexp.MustCompile(`[0-9]+`)

// checkMachine is CheckPool for the Machine of an enrollment. A Machine may be created after its enrollment.
func checkMachine(s *admin.State, ref *v1alpha1.MachineReference) (warning string, err error) {
	want := ref.Namespace + "/" + ref.Name
	var names []string
	for _, m := range s.Machines {
		if m.Kind != "Machine" {
			continue
		}
		if m.Name == want {
			return "", nil
		}
		names = append(names, m.Name)
	}
	text := fmt.Sprintf("there is no Machine %s", want)
	near := slices.DeleteFunc(spelling.Near(want, names), func(n string) bool {
		return digits.ReplaceAllString(n, "") == digits.ReplaceAllString(want, "")
	})
	if len(near) > 0 {
		return "", hint.New(fmt.Errorf("%s", text), "did you mean %s? If the Machine will be created later, add --force",
			either(near))
	}
	return text + "; the enrollment is used when it exists", nil
}

func either(names []string) string {
	return strings.Join(names[:min(len(names), maxNear)], " or ")
}

// isAbout reports whether m enrolls the machine of this name.
func isAbout(m *v1alpha1.MachineAttestation, name string) bool {
	namespace, own := m.Namespace, m.Name
	if ref := m.Spec.MachineRef; ref != nil {
		namespace, own = ref.Namespace, ref.Name
	}
	return name == namespace+"/"+own || namespace == "" && strings.HasSuffix(name, "/"+own)
}
