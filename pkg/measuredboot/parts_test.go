// SPDX-License-Identifier: Apache-2.0

package measuredboot_test

import (
	"testing"

	"github.com/mcs-attest/mcs-attest/pkg/eventlog/eventlogtest"
	"github.com/mcs-attest/mcs-attest/pkg/measuredboot"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// The parts of the profile secure-boot that need no reference values, one by one.
func TestParts(t *testing.T) {
	honest := captured(t, eventlogtest.SecureBootUKI)
	off := captured(t, eventlogtest.UKI)
	unmeasured := captured(t, eventlogtest.SecureBootUKI).happened(t, func(e events) events { return nil })
	separatorless := captured(t, eventlogtest.SecureBootUKI).happened(t, func(e events) events {
		i := separatorOf(t, e, 3)
		e[i] = eventlogtest.New(e[i], 3, e[i].Type, []byte("another event"))
		return e
	})
	for name, c := range map[string]struct {
		boot                 boot
		explained, protected reason.Code
	}{
		"a signed UKI":          {honest, 0, 0},
		"Secure Boot off":       {off, 0, reason.MeasuredBoot},
		"nothing was measured":  {unmeasured, 0, reason.MeasuredBoot},
		"no separator in PCR 3": {separatorless, 0, reason.MeasuredBoot},
		"no log": {boot{bank: honest.bank, quoted: honest.quoted}, reason.EventLogMalformed,
			reason.EventLogMalformed},
		"the log of another machine": {boot{bank: honest.bank, quoted: honest.quoted, log: off.log},
			reason.EventLogReplay, reason.EventLogReplay},
	} {
		b := c.boot
		for what, got := range map[string]struct {
			err  error
			want reason.Code
		}{
			"Explains":       {measuredboot.Explains(b.bank, b.quoted, b.log), c.explained},
			"UsesSecureBoot": {measuredboot.UsesSecureBoot(b.bank, b.quoted, b.log), c.protected},
		} {
			if got.want == 0 && got.err != nil || got.want != 0 && (got.err == nil || reason.From(got.err).Code != got.want) {
				t.Errorf("%s, %s: %v, expected %v", name, what, got.err, got.want)
			}
		}
	}
}
