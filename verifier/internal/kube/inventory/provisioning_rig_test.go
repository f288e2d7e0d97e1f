// SPDX-License-Identifier: Apache-2.0

package inventory_test

import (
	"strings"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/provisioning"
)

// What the watch has not brought yet can be read, and who cannot read it says so.
func TestProvisioningTokenIsReadAgain(t *testing.T) {
	w := newWhole(t)
	r, cut := w.wire()
	p := w.startAs(r, "replica-0")
	until(t, "sync", p.synced)
	const one, two = "AAAA-bbb_CCCC-ddd_EEEE-fff_GGGG-hhh_IIII-jjj", "1111-bbb_2222-ddd_3333-fff_4444-hhh_5555-jjj"
	if view, err := p.ReadProvisioning(t.Context()); err != nil {
		t.Error(err)
	} else if _, presence := view.At(time.Now()); presence != provisioning.Absent {
		t.Errorf("before there is one: %v", presence)
	}
	for _, token := range []string{one, two} {
		w.secret("openshift-config", "machineconfig-auth", map[string]string{"token": token})
		view, err := p.ReadProvisioning(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if tokens, _ := view.At(time.Now()); tokens.Check(time.Now(), []byte(token)) != provisioning.Current {
			t.Error("not the newest one")
		}
		until(t, "the watch brings it", func() error {
			tokens, _ := p.Provisioning().At(time.Now())
			return errorIf(tokens.Check(time.Now(), []byte(token)) != provisioning.Current, "it has not")
		})
	}
	cut.cut.Store(true)
	_, err := p.ReadProvisioning(t.Context())
	if err == nil || strings.Contains(err.Error(), two) {
		t.Errorf("without the API: %v", err)
	}
	if tokens, _ := p.Provisioning().At(time.Now()); tokens.Check(time.Now(), []byte(two)) != provisioning.Current {
		t.Error("what was known is forgotten")
	}
}
