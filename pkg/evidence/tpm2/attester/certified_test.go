// SPDX-License-Identifier: Apache-2.0

package attester_test

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/binary"
	"encoding/pem"
	"errors"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/google/go-tpm-tools/client"
	"github.com/google/go-tpm-tools/simulator"
	tpm "github.com/google/go-tpm/tpm2"
	"github.com/google/go-tpm/tpm2/transport"

	"github.com/mcs-attest/mcs-attest/pkg/anchors"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2/attester"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2/attester/swtpmtest"
)

const (
	gceRSACert, gceRSATemplate = 0x01C10000, 0x01C10001
	gceECCCert, gceECCTemplate = 0x01C10002, 0x01C10003
	azureCert                  = 0x01C101D0
	azureAK                    = 0x81000003
)

// platformAK returns a template of the form that clouds use. Its unique field differs, so the key
// is not the attester's own.
func platformAK(t *testing.T, alg tpm.TPMAlgID, change func(*tpm.TPMTPublic)) tpm.TPMTPublic {
	t.Helper()
	p := tpm.TPMTPublic{
		Type: alg, NameAlg: tpm.TPMAlgSHA256,
		ObjectAttributes: tpm.TPMAObject{
			FixedTPM: true, FixedParent: true, SensitiveDataOrigin: true, UserWithAuth: true, NoDA: true, Restricted: true,
			SignEncrypt: true,
		},
	}
	if alg == tpm.TPMAlgRSA {
		p.Parameters = tpm.NewTPMUPublicParms(alg, &tpm.TPMSRSAParms{
			Scheme: tpm.TPMTRSAScheme{
				Scheme:  tpm.TPMAlgRSASSA,
				Details: tpm.NewTPMUAsymScheme(tpm.TPMAlgRSASSA, &tpm.TPMSSigSchemeRSASSA{HashAlg: tpm.TPMAlgSHA256}),
			},
			KeyBits: 2048,
		})
		p.Unique = tpm.NewTPMUPublicID(alg, &tpm.TPM2BPublicKeyRSA{Buffer: []byte("a cloud's own")})
	} else {
		p.Parameters = tpm.NewTPMUPublicParms(alg, &tpm.TPMSECCParms{
			Scheme: tpm.TPMTECCScheme{
				Scheme:  tpm.TPMAlgECDSA,
				Details: tpm.NewTPMUAsymScheme(tpm.TPMAlgECDSA, &tpm.TPMSSigSchemeECDSA{HashAlg: tpm.TPMAlgSHA256}),
			},
			CurveID: tpm.TPMECCNistP256,
		})
		p.Unique = tpm.NewTPMUPublicID(alg, &tpm.TPMSECCPoint{X: tpm.TPM2BECCParameter{Buffer: []byte("a cloud's own")}})
	}
	if change != nil {
		change(&p)
	}
	return p
}

// certify issues an AK certificate in the form of the clouds.
func (i *issuer) certify(key crypto.PublicKey, extensions ...pkix.Extension) []byte {
	return i.issue(&x509.Certificate{
		SerialNumber: big.NewInt(3), Subject: pkix.Name{CommonName: "AK"}, NotBefore: time.Unix(0, 0),
		NotAfter: time.Unix(1<<32, 0),
		KeyUsage: x509.KeyUsageDigitalSignature, BasicConstraintsValid: true, ExtraExtensions: extensions,
	}, key)
}

// persist makes a key of a template persistent in a hierarchy.
func persist(t *testing.T, device transport.TPM, hierarchy tpm.TPMHandle, template tpm.TPMTPublic,
	handle tpm.TPMHandle) crypto.PublicKey {
	t.Helper()
	rsp, err := tpm.CreatePrimary{PrimaryHandle: hierarchy, InPublic: tpm.New2B(template)}.Execute(device)
	ok(t, err)
	owner := tpm.AuthHandle{Handle: tpm.TPMRHOwner, Auth: tpm.PasswordAuth(nil)}
	_, err = tpm.EvictControl{Auth: owner, ObjectHandle: &tpm.NamedHandle{Handle: rsp.ObjectHandle, Name: rsp.Name},
		PersistentHandle: handle}.Execute(device)
	ok(t, err)
	_, err = tpm.FlushContext{FlushHandle: rsp.ObjectHandle}.Execute(device)
	ok(t, err)
	t.Cleanup(func() {
		_, err := tpm.EvictControl{Auth: owner, ObjectHandle: &tpm.NamedHandle{Handle: handle, Name: rsp.Name},
			PersistentHandle: handle}.Execute(device)
		ok(t, err)
	})
	public, err := rsp.OutPublic.Contents()
	ok(t, err)
	key, err := tpm.Pub(*public)
	ok(t, err)
	return key
}

// akIsFrom checks that the AK is that of the certificate, or the attester's own if want is nil.
func akIsFrom(t *testing.T, id attester.Identity, want []byte, note string) {
	t.Helper()
	if (id.AKNote != "") != (note != "") || !strings.Contains(id.AKNote, note) {
		t.Errorf("note %q, want %q", id.AKNote, note)
	}
	if want == nil {
		if id.AKCertificates != nil {
			t.Errorf("%d AK certificates", len(id.AKCertificates))
		}
		return
	}
	if len(id.AKCertificates) != 1 || !bytes.Equal(id.AKCertificates[0], want) {
		t.Fatalf("AK certificates %x", id.AKCertificates)
	}
	cert, err := x509.ParseCertificate(want)
	ok(t, err)
	ak, err := tpm2.ParseAK(id.AKPublic)
	ok(t, err)
	if !cert.PublicKey.(interface{ Equal(crypto.PublicKey) bool }).Equal(ak.PublicKey()) {
		t.Error("the AK is not the certificate's")
	}
}

// The complete sequence on a software TPM that was provisioned like Google's: the AK is created
// from the template, and its certificate names the instance.
func TestCertifiedAK(t *testing.T) {
	name := pkix.Extension{Id: []int{1, 3, 6, 1, 4, 1, 11129, 2, 1, 21}, Value: []byte(
		"\x30\x2c\x0c\x06zone-1\x02\x01\x07\x0c\x09project-1\x02\x01\x09\x0c\x08worker-0\xa0\x07\x30\x05\xa1\x03\x01\x01\xff")}
	for _, c := range []struct {
		name           string
		alg            tpm.TPMAlgID
		cert, template uint32
		commands       int
	}{
		// The usual sequence needs 12 commands with these options (TestSoftwareTPM). Reading a
		// certificate and a template needs two more each.
		{"RSA-2048", tpm.TPMAlgRSA, gceRSACert, gceRSATemplate, 16},
		{"P-256", tpm.TPMAlgECC, gceECCCert, gceECCTemplate, 16},
	} {
		t.Run(c.name, func(t *testing.T) {
			device := swtpmtest.Start(t, "sha256").Dial()
			ca := newIssuer(t, "AK authority")
			template := platformAK(t, c.alg, nil)
			der := ca.certify(made(t, device, template), name)
			define(t, device, c.cert, der)
			define(t, device, c.template, tpm.Marshal(template))
			counted := attester.NewRetrying(device, time.Sleep)
			a, err := attester.Open(counted, attester.Options{Banks: []uint16{sha256Bank}})
			ok(t, err)
			id := a.Identity()
			akIsFrom(t, id, der, "")
			q := verify(t, a, sha256Bank, []int{11})
			ok(t, a.Close())
			if counted.Commands() != c.commands {
				t.Errorf("%d TPM commands, want %d", counted.Commands(), c.commands)
			}
			empty(t, device)

			roots, err := anchors.Parse("ak-roots/test.pem", append([]byte("# "+tpm2.VouchesForGCE+"\n"),
				pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.cert.Raw})...))
			ok(t, err)
			endorsement, err := tpm2.NewAKCertificateEndorser(roots).Endorse(t.Context(),
				tpm2.Identity{EK: q.EK, AK: q.AK, AKCertificates: id.AKCertificates}, time.Now())
			ok(t, err)
			if endorsement.ProviderID != "gce://project-1/zone-1/worker-0" || endorsement.InstanceID != "gcp:9" ||
				endorsement.AKSHA256 != q.AK.SPKIHash() {
				t.Errorf("%+v", endorsement)
			}
		})
	}
}

func TestCertifiedAKOfAzure(t *testing.T) {
	_, device := simulated(t)
	ca := newIssuer(t, "AK authority")
	der := ca.certify(persist(t, device, tpm.TPMRHEndorsement, platformAK(t, tpm.TPMAlgRSA, nil), azureAK))
	define(t, device, azureCert, append(bytes.Clone(der), make([]byte, 1500-len(der)%500)...))
	id := open(t, device)
	akIsFrom(t, id, der, "")
	// Google's come first if both exist.
	template := platformAK(t, tpm.TPMAlgECC, nil)
	google := ca.certify(made(t, device, template))
	define(t, device, gceECCCert, google)
	define(t, device, gceECCTemplate, tpm.Marshal(template))
	akIsFrom(t, open(t, device), google, "")
}

// go-tpm-tools, which Google's own agent uses, creates the same keys.
func TestOracle_CreatesTheSameAK(t *testing.T) {
	sim, device := simulated(t)
	ca := newIssuer(t, "AK authority")
	for _, c := range []struct {
		alg            tpm.TPMAlgID
		cert, template uint32
		make           func(*simulator.Simulator) (*client.Key, error)
	}{
		{tpm.TPMAlgRSA, gceRSACert, gceRSATemplate,
			func(s *simulator.Simulator) (*client.Key, error) { return client.GceAttestationKeyRSA(s) }},
		{tpm.TPMAlgECC, gceECCCert, gceECCTemplate,
			func(s *simulator.Simulator) (*client.Key, error) { return client.GceAttestationKeyECC(s) }},
	} {
		template := platformAK(t, c.alg, nil)
		der := ca.certify(made(t, device, template))
		define(t, device, c.cert, der)
		define(t, device, c.template, tpm.Marshal(template))
		key, err := c.make(sim)
		ok(t, err)
		if !bytes.Equal(key.CertDERBytes(), der) {
			t.Error("go-tpm-tools reads another certificate")
		}
		public, err := key.PublicArea().Encode()
		ok(t, err)
		key.Close()
		if id := open(t, device); !bytes.Equal(id.AKPublic, public) {
			t.Errorf("go-tpm-tools makes another AK of type 0x%04x", uint16(c.alg))
		}
	}
}

func TestUnusableCertifiedAKIsIgnored(t *testing.T) {
	ca := newIssuer(t, "AK authority")
	stranger, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	ok(t, err)
	attribute := func(change func(*tpm.TPMAObject)) func(*tpm.TPMTPublic) {
		return func(p *tpm.TPMTPublic) { change(&p.ObjectAttributes) }
	}
	scheme := func(s tpm.TPMTECCScheme) func(*tpm.TPMTPublic) {
		return func(p *tpm.TPMTPublic) {
			p.Parameters = tpm.NewTPMUPublicParms(tpm.TPMAlgECC, &tpm.TPMSECCParms{Scheme: s, CurveID: tpm.TPMECCNistP256})
		}
	}
	for _, c := range []struct {
		name   string
		change func(*tpm.TPMTPublic) // of the template in NV
		cert   []byte                // nil: that of the key
		note   string
	}{
		{"the certificate is of another key", nil, ca.certify(&stranger.PublicKey), "does not match the certificate"},
		{"the certificate's index holds zeros", nil, make([]byte, 900), "contains no certificate"},
		{"a truncated certificate", nil, ca.certify(&stranger.PublicKey)[:100], "contains no certificate"},
		{"the key is not restricted", attribute(func(a *tpm.TPMAObject) { a.Restricted = false }), nil, "attributes"},
		{"the key can be duplicated", attribute(func(a *tpm.TPMAObject) { a.FixedTPM, a.FixedParent = false, false }),
			nil, "attributes"},
		{"the key lasts until the next reset", attribute(func(a *tpm.TPMAObject) { a.STClear = true }), nil, "attributes"},
		{"the key is used under a policy", attribute(func(a *tpm.TPMAObject) { a.UserWithAuth = false }), nil, "policy"},
		{"the key is certified under a policy", attribute(func(a *tpm.TPMAObject) { a.AdminWithPolicy = true }),
			nil, "policy"},
		{"the key signs with SHA-384", scheme(tpm.TPMTECCScheme{
			Scheme: tpm.TPMAlgECDSA, Details: tpm.NewTPMUAsymScheme(tpm.TPMAlgECDSA,
				&tpm.TPMSSigSchemeECDSA{HashAlg: tpm.TPMAlgSHA384}),
		}), nil, "hash 0x000c"},
		{"a template that the TPM rejects", func(p *tpm.TPMTPublic) {
			p.AuthPolicy = tpm.TPM2BDigest{Buffer: []byte("short")}
		}, ca.certify(&stranger.PublicKey), "TPM_RC_SIZE"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, device := simulated(t)
			template := platformAK(t, tpm.TPMAlgECC, c.change)
			der := c.cert
			if der == nil {
				der = ca.certify(made(t, device, template))
			}
			define(t, device, gceECCCert, der)
			define(t, device, gceECCTemplate, tpm.Marshal(template))
			akIsFrom(t, open(t, device), nil, c.note)
		})
	}
	t.Run("the template is garbage", func(t *testing.T) {
		_, device := simulated(t)
		define(t, device, gceECCCert, ca.certify(&stranger.PublicKey))
		define(t, device, gceECCTemplate, []byte{0, 0x23, 0xff})
		akIsFrom(t, open(t, device), nil, "template in NV index")
	})
	t.Run("no template", func(t *testing.T) {
		_, device := simulated(t)
		define(t, device, gceECCCert, ca.certify(&stranger.PublicKey))
		akIsFrom(t, open(t, device), nil, "has no template")
	})
	t.Run("a template without a certificate is ignored", func(t *testing.T) {
		_, device := simulated(t)
		define(t, device, gceECCTemplate, tpm.Marshal(platformAK(t, tpm.TPMAlgECC, nil)))
		akIsFrom(t, open(t, device), nil, "")
	})
	t.Run("the second is used where the first is not fit", func(t *testing.T) {
		_, device := simulated(t)
		define(t, device, gceECCCert, []byte{0xff})
		template := platformAK(t, tpm.TPMAlgRSA, nil)
		der := ca.certify(made(t, device, template))
		define(t, device, gceRSACert, der)
		define(t, device, gceRSATemplate, tpm.Marshal(template))
		akIsFrom(t, open(t, device), der, "")
	})
	t.Run("no key at the persistent handle", func(t *testing.T) {
		_, device := simulated(t)
		define(t, device, azureCert, ca.certify(&stranger.PublicKey))
		akIsFrom(t, open(t, device), nil, "no key at 0x81000003")
	})
	t.Run("the persistent key is of the owner hierarchy", func(t *testing.T) {
		_, device := simulated(t)
		define(t, device, azureCert,
			ca.certify(persist(t, device, tpm.TPMRHOwner, platformAK(t, tpm.TPMAlgECC, nil), azureAK)))
		akIsFrom(t, open(t, device), nil, "is not a primary key of the endorsement hierarchy")
	})
	t.Run("the persistent key is another than the certificate's", func(t *testing.T) {
		_, device := simulated(t)
		persist(t, device, tpm.TPMRHEndorsement, platformAK(t, tpm.TPMAlgECC, nil), azureAK)
		define(t, device, azureCert, ca.certify(&stranger.PublicKey))
		akIsFrom(t, open(t, device), nil, "does not match the certificate")
	})
}

// After a temporary failure the agent does not continue without the certificate, because the next
// boot would then have another key.
func TestTemporaryFailuresOfACertifiedAK(t *testing.T) {
	_, device := simulated(t)
	ca := newIssuer(t, "AK authority")
	template := platformAK(t, tpm.TPMAlgECC, nil)
	define(t, device, gceECCCert, ca.certify(made(t, device, template)))
	define(t, device, gceECCTemplate, tpm.Marshal(template))
	busy := scripted{device, func(command []byte) []byte {
		if binary.BigEndian.Uint32(command[6:10]) == uint32(tpm.TPMCCNVRead) {
			return responseCode(uint32(tpm.TPMRCLockout))
		}
		return nil
	}}
	if _, err := attester.Open(busy, attester.Options{}); !errors.Is(err, tpm.TPMRCLockout) {
		t.Errorf("%v, want TPM_RC_LOCKOUT", err)
	}
	empty(t, device)

	// A device that fails at any command leaves no loaded object.
	broken := errors.New("bus error")
	for at := 1; ; at++ {
		n := 0
		err := complete(t, failing{device, func() error {
			if n++; n == at {
				return broken
			}
			return nil
		}})
		empty(t, device)
		if n < at {
			ok(t, err)
			return
		}
		if !errors.Is(err, broken) {
			t.Errorf("command %d fails: %v", at, err)
		}
	}
}
