// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/mcs-attest/mcs-attest/pkg/eventlog"
	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/transcript"
)

func bankID(name string) uint16 {
	for _, b := range []uint16{eventlog.SHA256, eventlog.SHA384} {
		if transcript.BankName(b) == name {
			return b
		}
	}
	return 0
}

// oneOf checks an enum whose first value is the default.
func oneOf[T ~string](c *check, path string, value T, values ...T) T {
	if value == "" {
		return values[0]
	}
	if !slices.Contains(values, value) {
		c.fault(path, fmt.Sprintf("%q is not a valid value", string(value)), "one of "+list(values))
	}
	return value
}

// duration returns a duration or its default, and checks its bounds. If longest is 0, there is no upper bound.
func (c *check) duration(path string, d metav1.Duration, def, shortest, longest time.Duration) time.Duration {
	switch {
	case d.Duration == 0:
		return def
	case d.Duration < shortest, longest != 0 && d.Duration > longest:
		want := fmt.Sprintf("at least %s", shortest)
		if longest != 0 {
			want = fmt.Sprintf("%s to %s", shortest, longest)
		}
		c.fault(path, d.Duration.String()+" is out of bounds", want)
	}
	return d.Duration
}

func list[T ~string](values []T) string {
	s := make([]string, len(values))
	for i, v := range values {
		s[i] = string(v)
	}
	return strings.Join(s, ", ")
}

func kindList(values []evidence.Kind) string {
	s := make([]string, len(values))
	for i, v := range values {
		s[i] = v.String()
	}
	return strings.Join(s, ", ")
}

func allKinds() string {
	var all []evidence.Kind
	for k := evidence.TPM2; k.Valid(); k++ {
		all = append(all, k)
	}
	return kindList(all)
}

// A MachineConfigPool's name is an RFC 1123 subdomain.
func validPool(s string) bool { return len(validation.IsDNS1123Subdomain(s)) == 0 }
