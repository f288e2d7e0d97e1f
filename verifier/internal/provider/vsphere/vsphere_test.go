// SPDX-License-Identifier: Apache-2.0

package vsphere

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/vmware/govmomi/vim25/types"

	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

func TestVirtualTPM(t *testing.T) {
	v := start(t)
	d, _ := v.directory()
	var got tpm2.ProviderKeys
	for range 3 {
		var err error
		got, err = d.EndorsementKeys(t.Context(), v.id(0), v.ek)
		ok(t, err)
	}
	if len(got.SPKI) != 1 || sha256.Sum256(got.SPKI[0]) != v.ek.SPKIHash() ||
		got.InstanceID != "vsphere:"+v.vms[0].Config.InstanceUuid {
		t.Errorf("%+v", got)
	}
	e, err := tpm2.ProviderEndorser{Directory: d, ProviderID: v.id(0)}.Endorse(t.Context(), tpm2.Identity{EK: v.ek},
		time.Now())
	if err != nil || e.ProviderID != v.id(0) || e.EKSHA256 != v.ek.SPKIHash() {
		t.Errorf("%+v, %v", e, err)
	}
	if n := v.logins.Load(); n != 1 {
		t.Errorf("%d logins", n)
	}
	ok(t, d.Close(t.Context()))
	ok(t, d.Close(t.Context()))
	// Another machine's TPM is not this one's.
	other, der := ek(t)
	v.attach(1, &types.VirtualTPM{EndorsementKeyCertificate: [][]byte{der}})
	_, err = tpm2.ProviderEndorser{Directory: d, ProviderID: v.id(0)}.Endorse(t.Context(), tpm2.Identity{EK: other},
		time.Now())
	denied(t, err, reason.EKUntrusted)
	if _, err = (tpm2.ProviderEndorser{Directory: d, ProviderID: v.id(1)}).Endorse(t.Context(), tpm2.Identity{EK: other},
		time.Now()); err != nil {
		t.Error(err)
	}
}

func TestMachinesThatAreNotEndorsed(t *testing.T) {
	v := start(t)
	_, der := ek(t)
	for _, c := range []struct {
		name  string
		id    string
		setUp func()
		want  reason.Code
	}{
		{"a machine without a TPM", v.id(1), nil, reason.EKUntrusted},
		{"a TPM without certificates", v.id(1), func() { v.attach(1, &types.VirtualTPM{}) }, reason.ProviderUnavailable},
		{"a TPM with a request and no certificate", v.id(1), func() {
			v.attach(1, &types.VirtualTPM{EndorsementKeyCertificateSigningRequest: [][]byte{der}})
		}, reason.ProviderUnavailable},
		{"a TPM with garbage", v.id(1), func() {
			v.attach(1, &types.VirtualTPM{EndorsementKeyCertificate: [][]byte{{0x30}, nil, der[:100]}})
		}, reason.ProviderUnavailable},
		{"two TPMs", v.id(1), func() {
			v.attach(1, &types.VirtualTPM{EndorsementKeyCertificate: [][]byte{der}},
				&types.VirtualTPM{EndorsementKeyCertificate: [][]byte{der}})
		}, reason.EKUntrusted},
		{"no such machine", "vsphere://00000000-0000-4000-8000-000000000001", nil, reason.InstanceNotFound},
		{"an instance UUID", "vsphere://" + v.vms[0].Config.InstanceUuid, nil, reason.InstanceNotFound},
		{"capital letters", strings.ToUpper(v.id(0)[:20]) + v.id(0)[20:], nil, 0},
		{"a UUID in capitals", "vsphere://" + strings.ToUpper(v.vms[0].Config.Uuid), nil, reason.InstanceNotFound},
		{"something after the UUID", v.id(0) + "/x", nil, reason.InstanceNotFound},
		{"no UUID", "vsphere://", nil, reason.InstanceNotFound},
		{"a machine of another provider", "aws:///eu-central-1a/i-0123456789abcdef0", nil, 0},
		{"no machine", "", nil, 0},
		{"a clone with the same UUID", v.id(2), func() { v.vms[1].Config.Uuid = v.vms[2].Config.Uuid },
			reason.MachineAmbiguous},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.setUp != nil {
				c.setUp()
			}
			d, _ := v.directory() // nothing is remembered
			_, err := d.EndorsementKeys(t.Context(), c.id, v.ek)
			if c.want != 0 {
				denied(t, err, c.want)
			} else if !errors.Is(err, tpm2.ErrNotMine) {
				t.Errorf("%v, want ErrNotMine", err)
			}
		})
	}
}

// A machine that is not the one that was looked for.
func TestAnswerAboutAnotherMachine(t *testing.T) {
	v := start(t)
	d, clock := v.directory()
	_, err := d.EndorsementKeys(t.Context(), v.id(0), v.ek)
	ok(t, err)
	clock.advance(time.Minute)
	v.rewrite = func(body []byte) []byte {
		return bytes.ReplaceAll(body, []byte(v.vms[0].Config.Uuid), []byte(v.vms[1].Config.Uuid))
	}
	_, err = d.EndorsementKeys(t.Context(), v.id(0), v.ek)
	denied(t, err, reason.ProviderUnavailable)
	clock.advance(time.Minute)
	v.rewrite = func(body []byte) []byte {
		return bytes.ReplaceAll(body, []byte(v.vms[0].Config.InstanceUuid), []byte("none"))
	}
	_, err = d.EndorsementKeys(t.Context(), v.id(0), v.ek)
	denied(t, err, reason.ProviderUnavailable)
	clock.advance(time.Minute)
	v.rewrite = func([]byte) []byte { return []byte("<html>") }
	_, err = d.EndorsementKeys(t.Context(), v.id(0), v.ek)
	denied(t, err, reason.ProviderUnavailable)
}

// Each of two vCenters has machines of its own. If one is unavailable, it is unknown
// whether it has the machine, too.
func TestTwoVCenters(t *testing.T) {
	v, other := start(t), start(t)
	other.rename()
	d, clock := v.directory(other.config())
	ask := func(id string, ek *tpm2.EK) error {
		clock.advance(time.Minute)
		_, err := d.EndorsementKeys(t.Context(), id, ek)
		return err
	}
	ok(t, ask(v.id(0), v.ek))
	ok(t, ask(other.id(0), other.ek))
	absent := "vsphere://00000000-0000-4000-8000-000000000001"
	denied(t, ask(absent, v.ek), reason.InstanceNotFound)
	denied(t, ask(v.id(1), v.ek), reason.EKUntrusted) // it has no TPM
	for name, down := range map[string]*vcenter{"the one that has it": v, "the other": other} {
		down.down.Store(true)
		for _, id := range []string{v.id(0), v.id(1), absent} {
			if d := reason.From(ask(id, v.ek)); d == nil || d.Code != reason.ProviderUnavailable {
				t.Errorf("%s is down: %v for %s", name, d, id)
			}
		}
		down.down.Store(false)
		ok(t, ask(v.id(0), v.ek))
	}
}

// A clone in another vCenter, or in the same one, has the UUID and a TPM of its own.
func TestAttack_T21_ACloneIsNeverEndorsedAndExcludesNoMachine(t *testing.T) {
	v, other := start(t), start(t)
	other.rename()
	d, clock := v.directory(other.config())
	ask := func(ek *tpm2.EK) error {
		clock.advance(time.Minute)
		_, err := tpm2.ProviderEndorser{Directory: d, ProviderID: v.id(0)}.Endorse(t.Context(), tpm2.Identity{EK: ek},
			time.Now())
		return err
	}
	ok(t, ask(v.ek))
	both := func(want reason.Code) {
		t.Helper()
		for _, ek := range []*tpm2.EK{v.ek, other.ek} {
			err := ask(ek)
			denied(t, err, want)
			if !reason.From(err).Code.Temporary() {
				t.Errorf("%v is final", err)
			}
		}
	}
	own, second := other.vms[0].Config.Uuid, v.vms[1].Config.Uuid
	other.vms[0].Config.Uuid = v.vms[0].Config.Uuid
	both(reason.MachineAmbiguous)
	// Nor is it while the vCenter of the rightful machine cannot be asked.
	v.down.Store(true)
	both(reason.ProviderUnavailable)
	v.down.Store(false)
	// A clone that has no TPM, or one that cannot be read, is a clone nevertheless.
	other.attach(0)
	both(reason.MachineAmbiguous)
	other.vms[0].Config.Uuid = own
	ok(t, ask(v.ek))
	v.vms[1].Config.Uuid = v.vms[0].Config.Uuid
	both(reason.MachineAmbiguous)
	// Once the clones are gone the machine gets in.
	v.vms[1].Config.Uuid = second
	ok(t, ask(v.ek))
}

// rename gives each machine a BIOS UUID that no other vCenter's has.
func (v *vcenter) rename() {
	for _, vm := range v.vms {
		vm.Config.Uuid = fmt.Sprintf("00000000-0000-4000-8000-%012x", sha256.Sum256([]byte(vm.Name)))[:36]
	}
}

func TestCertifiedKeys(t *testing.T) {
	parsed, text := ek(t)
	der, err := base64.StdEncoding.DecodeString(string(text))
	ok(t, err)
	lines := append([]byte("\n "), append(append(append([]byte{}, text[:64]...), '\r', '\n'), text[64:]...)...)
	got := certifiedKeys([][]byte{text, der, lines, nil, []byte("AAAA"), text[:40], der[:len(der)-1],
		append(append([]byte{}, der...), 0)})
	if len(got) != 3 {
		t.Errorf("%d keys", len(got))
	}
	for _, spki := range got {
		if sha256.Sum256(spki) != parsed.SPKIHash() {
			t.Errorf("%x is another key", spki)
		}
	}
	many := make([][]byte, maxCertificates+3)
	for i := range many {
		many[i] = text
	}
	if n := len(certifiedKeys(many)); n != maxCertificates {
		t.Errorf("%d keys were read", n)
	}
}
