// SPDX-License-Identifier: Apache-2.0

package measuredboot_test

import (
	"strings"
	"testing"

	"github.com/mcs-attest/mcs-attest/pkg/eventlog"
	"github.com/mcs-attest/mcs-attest/pkg/eventlog/eventlogtest"
	"github.com/mcs-attest/mcs-attest/pkg/measuredboot"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// The reference values come from an image of an OSTree system, after boot.sh added the agent's archive. A
// boot without the archive, or with another one, is another image.
func TestReleaseAcceptsAnOSTreeSystemOnlyWithTheAgentsArchive(t *testing.T) {
	c := eventlogtest.Load(t, eventlogtest.OSTree)
	refs := references(t, eventlogtest.OSTree)
	b := boot{
		profile: measuredboot.Release,
		bank:    eventlog.SHA256,
		quoted:  c.PCRs("sha256", measuredboot.Release.PCRs()...),
		log:     c.Log,
		refs:    []measuredboot.ReferenceValues{refs},
	}
	if r := passes(t, b); r.Image != eventlogtest.OSTree {
		t.Errorf("got %+v", r)
	}
	archive := refs.Loads[len(refs.Loads)-1].Name
	if !strings.HasPrefix(archive, "/ostree/initramfs-overlays/") {
		t.Fatalf("the last file that GRUB loads is %s", archive)
	}
	isArchive := func(e eventlogtest.Event) bool { return e.PCR == 9 && strings.Contains(string(e.Data), archive) }
	fails(t, b.booted(t, func(log events) (out events) {
		for _, e := range log {
			if !isArchive(e) {
				out = append(out, e)
			}
		}
		return out
	}), reason.MeasuredBoot, "PCR 9")
	fails(t, b.booted(t, func(log events) events {
		for i, e := range log {
			if isArchive(e) {
				log[i] = another(e)
			}
		}
		return log
	}), reason.MeasuredBoot, archive)
}
