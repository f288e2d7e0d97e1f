// SPDX-License-Identifier: Apache-2.0

package attester_test

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-tpm-tools/simulator"
	tpm "github.com/google/go-tpm/tpm2"
	"github.com/google/go-tpm/tpm2/transport"

	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2/attester"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2/attester/swtpmtest"
	"github.com/mcs-attest/mcs-attest/pkg/measuredboot"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
	"github.com/mcs-attest/mcs-attest/pkg/transcript"
)

const (
	sha256Bank = 0x000B
	sha384Bank = 0x000C
)

// verify acts as the verifier: it creates a credential for the keys and appraises the answer.
func verify(t *testing.T, a *attester.Attester, bank uint16, pcrs []int) *tpm2.Quote {
	t.Helper()
	id := a.Identity()
	ek, err := tpm2.ParseEK(id.EKPublic)
	ok(t, err)
	ak, err := tpm2.ParseAK(id.AKPublic)
	ok(t, err)
	if ek.SPKIHash() != id.EKSPKI {
		t.Fatal("attester and verifier disagree on the EK's hash")
	}
	if !bytes.Equal(ak.Name(), id.AKName) {
		t.Fatal("attester and verifier disagree on the AK's name")
	}
	if string(id.EKType) != ek.Describe() {
		t.Fatalf("attester calls the EK %q, the verifier %q", id.EKType, ek.Describe())
	}
	k := make([]byte, 32)
	_, err = rand.Read(k)
	ok(t, err)
	blob, encrypted, err := tpm2.MakeCredential(rand.Reader, ek, ak.Name(), k)
	ok(t, err)
	h := transcript.Hash(sha256.Sum256([]byte("a conversation")))
	ev, err := a.Attest(attester.Challenge{CredentialBlob: blob, EncryptedSecret: encrypted, Bank: bank, PCRs: pcrs}, h)
	ok(t, err)
	q, err := tpm2.VerifyQuote(
		tpm2.Challenge{EK: ek, AK: ak, Secret: secret.New(k), Bank: bank, PCRs: pcrs, Transcript: h},
		tpm2.Evidence{Quote: ev.Quote, Signature: ev.Signature, Activation: ev.Activation, PCRValues: ev.PCRValues})
	ok(t, err)
	return q
}

var secureBootPCRs = []int{0, 1, 2, 3, 4, 5, 6, 7, 11, 12, 13}

func TestSoftwareTPM(t *testing.T) {
	for _, c := range []struct {
		name     string
		key      attester.Key
		cert     string
		commands int
		banks    []uint16
		pcrs     []int
	}{
		{"the P-384 EK comes first where both are certified", "", "secp384r1", 13, nil, []int{11}},
		{"banks from sysfs save a command", "", "secp384r1", 12, []uint16{sha256Bank}, []int{11}},
		{"RSA-2048 on request, which has no PolicyOR", attester.RSA2048, "rsa2048", 12, nil, []int{11}},
		{"RSA-2048 with banks from sysfs", attester.RSA2048, "rsa2048", 11, []uint16{sha256Bank}, []int{11}},
		{"more than eight PCRs take a second read", attester.RSA2048, "rsa2048", 12, []uint16{sha256Bank}, secureBootPCRs},
	} {
		t.Run(c.name, func(t *testing.T) {
			device := swtpmtest.Start(t, "sha256")
			counted := attester.NewRetrying(device.Dial(), time.Sleep)
			a, err := attester.Open(counted, attester.Options{Key: c.key, Banks: c.banks})
			ok(t, err)
			if a.Identity().EKSPKI != device.SPKI(c.cert) {
				t.Errorf("the EK is not the one of the %s certificate", c.cert)
			}
			if n := len(a.Identity().EKCertificates); n != 1 {
				t.Errorf("%d certificates, want 1", n)
			}
			verify(t, a, sha256Bank, c.pcrs)
			ok(t, a.Close())
			if counted.Commands() != c.commands {
				t.Errorf("%d TPM commands, want %d", counted.Commands(), c.commands)
			}
			empty(t, device.Dial())
		})
	}
}

func TestSameKeysAfterReboot(t *testing.T) {
	device := swtpmtest.Start(t, "sha256")
	var ids []attester.Identity
	for range 2 {
		a, err := attester.Open(device.Dial(), attester.Options{})
		ok(t, err)
		ids = append(ids, a.Identity())
		ok(t, a.Close())
		device.Reboot()
	}
	if !bytes.Equal(ids[0].AKPublic, ids[1].AKPublic) || ids[0].EKSPKI != ids[1].EKSPKI {
		t.Error("the keys differ after a reboot")
	}
}

func TestBanks(t *testing.T) {
	device := swtpmtest.Start(t, "sha256,sha384")
	a, err := attester.Open(device.Dial(), attester.Options{})
	ok(t, err)
	if got := a.Identity().Banks; !slices.Equal(got, []uint16{sha256Bank, sha384Bank}) {
		t.Errorf("banks %v", got)
	}
	q := verify(t, a, sha384Bank, secureBootPCRs)
	if len(q.PCRs[11]) != 48 {
		t.Errorf("PCR 11 has %d bytes", len(q.PCRs[11]))
	}
	_, err = a.Attest(attester.Challenge{Bank: 0x0004, PCRs: []int{11}}, transcript.Hash{})
	if err == nil || !strings.Contains(err.Error(), "no PCR bank sha1") {
		t.Errorf("a bank that is not allocated: %v", err)
	}
	ok(t, a.Close())
}

func TestCap(t *testing.T) {
	if attester.CapLabel != measuredboot.CapLabel {
		t.Fatalf("attester caps with %q, measuredboot expects %q", attester.CapLabel, measuredboot.CapLabel)
	}
	device := swtpmtest.Start(t, "sha256,sha384")
	ok(t, attester.Cap(device.Dial()))
	a, err := attester.Open(device.Dial(), attester.Options{})
	ok(t, err)
	for bank, size := range map[uint16]int{sha256Bank: 32, sha384Bank: 48} {
		want := extend(bank, make([]byte, size), measuredboot.CapDigest(bank))
		if got := verify(t, a, bank, []int{11}).PCRs[11]; !bytes.Equal(got, want) {
			t.Errorf("PCR 11 of the %s bank is %x, want %x", transcript.BankName(bank), got, want)
		}
	}
}

// Attack T32: root on a running node, or a container with its TPM, can use the keys, but PCR 11 has
// another value.
func TestAttack_T32_AttestAfterTheInitramfs(t *testing.T) {
	device := swtpmtest.Start(t, "sha256")
	appraise := func() error {
		a, err := attester.Open(device.Dial(), attester.Options{})
		ok(t, err)
		q := verify(t, a, sha256Bank, []int{11})
		ok(t, a.Close())
		_, err = measuredboot.Appraise(measuredboot.IdentityOnly, sha256Bank, q.PCRs, nil, nil)
		return err
	}
	if err := appraise(); err != nil {
		t.Fatalf("the valid case: %v", err)
	}
	ok(t, attester.Cap(device.Dial()))
	if d := reason.From(appraise()); d == nil || d.Code != reason.PCRCapped {
		t.Errorf("after the cap: %v", d)
	}
	// PCR 11 cannot be reset at any locality of a process.
	_, err := tpm.PCRReset{PCRHandle: tpm.AuthHandle{Handle: tpm.TPMHandle(attester.CapPCR),
		Auth: tpm.PasswordAuth(nil)}}.Execute(device.Dial())
	if !errors.Is(err, tpm.TPMRCLocality) {
		t.Errorf("resetting PCR 11: %v", err)
	}
	device.Reboot()
	if err := appraise(); err != nil {
		t.Errorf("after a reboot: %v", err)
	}
}

// simulated starts the simulator without a certificate in NV.
func simulated(t *testing.T) (*simulator.Simulator, transport.TPM) {
	t.Helper()
	sim, err := simulator.Get()
	ok(t, err)
	t.Cleanup(func() { ok(t, sim.Close()) })
	return sim, transport.FromReadWriter(sim)
}

func TestNoCertificate(t *testing.T) {
	for _, key := range []attester.Key{"", attester.ECCP256, attester.RSA2048, attester.ECCP384} {
		t.Run(fmt.Sprintf("EK %q is created from the default template", key), func(t *testing.T) {
			_, device := simulated(t)
			a, err := attester.Open(device, attester.Options{Key: key})
			ok(t, err)
			want := key
			if want == "" {
				want = attester.ECCP256
			}
			if got := a.Identity().EKType; got != want {
				t.Errorf("EK %s, want %s", got, want)
			}
			verify(t, a, sha256Bank, []int{0, 7, 11})
			ok(t, a.Close())
			empty(t, device)
		})
	}
}

func TestEKNonceInNV(t *testing.T) {
	_, device := simulated(t)
	before, err := attester.Open(device, attester.Options{})
	ok(t, err)
	ok(t, before.Close())
	define(t, device, 0x01C0000B, []byte("a nonce of the manufacturer"))
	a, err := attester.Open(device, attester.Options{})
	ok(t, err)
	if a.Identity().EKSPKI == before.Identity().EKSPKI {
		t.Error("the nonce made no difference")
	}
	verify(t, a, sha256Bank, []int{11})
	ok(t, a.Close())
	empty(t, device)
}

func TestEKTemplateInNV(t *testing.T) {
	_, device := simulated(t)
	template := tpm.ECCEKTemplate
	template.ObjectAttributes.NoDA = true
	define(t, device, 0x01C0000C, tpm.Marshal(template))
	a, err := attester.Open(device, attester.Options{})
	ok(t, err)
	if binary.BigEndian.Uint32(a.Identity().EKPublic[4:8])&(1<<10) == 0 {
		t.Error("the template in NV was not used")
	}
	verify(t, a, sha256Bank, []int{11})
	ok(t, a.Close())
}

func TestEndorsementPassword(t *testing.T) {
	sim, device := simulated(t)
	t.Cleanup(func() { ok(t, sim.ManufactureReset()) })
	_, err := tpm.HierarchyChangeAuth{
		AuthHandle: tpm.AuthHandle{Handle: tpm.TPMRHEndorsement, Auth: tpm.PasswordAuth(nil)},
		NewAuth:    tpm.TPM2BAuth{Buffer: []byte("owned")},
	}.Execute(device)
	ok(t, err)
	if _, err := attester.Open(device, attester.Options{}); !errors.Is(err, attester.ErrEndorsementOwned) {
		t.Error(err)
	}
	empty(t, device)
}

func TestFailuresLeaveNothingLoaded(t *testing.T) {
	_, device := simulated(t)
	a, err := attester.Open(device, attester.Options{})
	ok(t, err)
	for _, c := range []struct {
		name string
		ch   attester.Challenge
	}{
		{"an empty credential", attester.Challenge{Bank: sha256Bank, PCRs: []int{11}}},
		{"a credential of zeros", attester.Challenge{
			CredentialBlob: []byte{0, 4, 0, 0, 0, 0}, EncryptedSecret: []byte{0, 2, 0, 0}, Bank: sha256Bank, PCRs: []int{11}}},
		{"no PCR", attester.Challenge{Bank: sha256Bank}},
		{"PCR 24", attester.Challenge{Bank: sha256Bank, PCRs: []int{24}}},
		{"PCRs out of order", attester.Challenge{Bank: sha256Bank, PCRs: []int{11, 7}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := a.Attest(c.ch, transcript.Hash{}); err == nil {
				t.Error("no error")
			}
		})
	}
	// The challenges caused the failures, not the TPM.
	verify(t, a, sha256Bank, []int{11})
	ok(t, a.Close())
	empty(t, device)
}

// Another process extends a PCR between the read and the quote.
func TestPCRChangesDuringQuote(t *testing.T) {
	_, device := simulated(t)
	changes := 1
	racing := scripted{device, func(command []byte) []byte {
		if binary.BigEndian.Uint32(command[6:10]) == uint32(tpm.TPMCCQuote) && changes > 0 {
			changes--
			ok(t, attester.Cap(device))
		}
		return nil
	}}
	a, err := attester.Open(racing, attester.Options{})
	ok(t, err)
	verify(t, a, sha256Bank, []int{11})
	changes = 100
	_, err = a.Attest(attester.Challenge{Bank: sha256Bank, PCRs: []int{11}}, transcript.Hash{})
	if err == nil || !strings.Contains(err.Error(), "changed during each") {
		t.Errorf("PCRs that never rest: %v", err)
	}
	ok(t, a.Close())
}

// The activated secret does not cross the bus in clear text.
func TestSecretIsEncryptedOnTheBus(t *testing.T) {
	device := swtpmtest.Start(t, "sha256")
	for _, key := range []attester.Key{attester.RSA2048, attester.ECCP384} {
		wire := &recorder{TPM: device.Dial()}
		a, err := attester.Open(wire, attester.Options{Key: key})
		ok(t, err)
		ek, err := tpm2.ParseEK(a.Identity().EKPublic)
		ok(t, err)
		k := bytes.Repeat([]byte("canary!!"), 4)
		blob, encrypted, err := tpm2.MakeCredential(rand.Reader, ek, a.Identity().AKName, k)
		ok(t, err)
		_, err = a.Attest(attester.Challenge{CredentialBlob: blob, EncryptedSecret: encrypted, Bank: sha256Bank,
			PCRs: []int{11}}, transcript.Hash{})
		ok(t, err)
		if bytes.Contains(wire.seen, k) {
			t.Errorf("EK %s: the secret is on the bus", key)
		}
		ok(t, a.Close())
		ok(t, wire.TPM.(*swtpmtest.Conn).Close())
	}
}

type recorder struct {
	transport.TPM
	seen []byte
}

func (r *recorder) Send(command []byte) ([]byte, error) {
	response, err := r.TPM.Send(command)
	r.seen = append(append(r.seen, command...), response...)
	return response, err
}

// empty checks that no object and no session is loaded.
func empty(t *testing.T, device transport.TPM) {
	t.Helper()
	for _, first := range []uint32{0x80000000, 0x02000000, 0x03000000} {
		rsp, err := tpm.GetCapability{Capability: tpm.TPMCapHandles, Property: first, PropertyCount: 16}.Execute(device)
		ok(t, err)
		handles, err := rsp.CapabilityData.Data.Handles()
		ok(t, err)
		if len(handles.Handle) > 0 {
			t.Errorf("left in the TPM: %x", handles.Handle)
		}
	}
}

// define writes data into a new NV index that authorizes its own reading.
func define(t *testing.T, device transport.TPM, index uint32, data []byte) {
	t.Helper()
	public := tpm.TPMSNVPublic{
		NVIndex: tpm.TPMHandle(index), NameAlg: tpm.TPMAlgSHA256, DataSize: uint16(len(data)),
		Attributes: tpm.TPMANV{OwnerWrite: true, OwnerRead: true, AuthRead: true, NoDA: true},
	}
	owner := tpm.AuthHandle{Handle: tpm.TPMRHOwner, Auth: tpm.PasswordAuth(nil)}
	_, err := tpm.NVDefineSpace{AuthHandle: owner, PublicInfo: tpm.New2B(public)}.Execute(device)
	ok(t, err)
	name, err := tpm.NVName(&public)
	ok(t, err)
	t.Cleanup(func() {
		rsp, err := tpm.NVReadPublic{NVIndex: tpm.TPMHandle(index)}.Execute(device)
		ok(t, err)
		_, err = tpm.NVUndefineSpace{AuthHandle: owner,
			NVIndex: tpm.NamedHandle{Handle: tpm.TPMHandle(index), Name: rsp.NVName}}.Execute(device)
		ok(t, err)
	})
	for at := 0; at < len(data); at += 512 {
		_, err = tpm.NVWrite{
			AuthHandle: owner, NVIndex: tpm.NamedHandle{Handle: tpm.TPMHandle(index), Name: *name},
			Data: tpm.TPM2BMaxNVBuffer{Buffer: data[at:min(at+512, len(data))]}, Offset: uint16(at),
		}.Execute(device)
		ok(t, err)
	}
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func extend(bank uint16, value, digest []byte) []byte {
	if bank == sha384Bank {
		sum := sha512.Sum384(append(slices.Clone(value), digest...))
		return sum[:]
	}
	sum := sha256.Sum256(append(slices.Clone(value), digest...))
	return sum[:]
}
