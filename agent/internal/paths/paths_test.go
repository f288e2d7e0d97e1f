// SPDX-License-Identifier: Apache-2.0

package paths_test

import (
	"testing"

	"github.com/mcs-attest/mcs-attest/agent/internal/paths"
	"github.com/mcs-attest/mcs-attest/pkg/firstboot"
)

func TestDefault(t *testing.T) {
	t.Setenv("MCS_ATTEST_TPM", "/run/other-tpm")
	t.Setenv("MCS_ATTEST_BOOT", "")
	p := paths.Default()
	// The pre-approved config has the folder in which the agent searches.
	if p.FirstBoot != firstboot.Dir {
		t.Errorf("FirstBoot is %s, and a pre-approved config has %s", p.FirstBoot, firstboot.Dir)
	}
	if p.TPM != "/run/other-tpm" || p.Boot != "/boot" || p.Cmdline != "/proc/cmdline" {
		t.Errorf("%+v", p)
	}
}
