// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto"
	"crypto/aes"
	"crypto/cipher"
	"crypto/ecdh"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"connectrpc.com/connect"
	tpm "github.com/google/go-tpm/tpm2"

	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2/attester"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2/attester/swtpmtest"
	"github.com/mcs-attest/mcs-attest/pkg/transcript"
	mcsattestv1 "github.com/mcs-attest/mcs-attest/proto/mcsattest/v1"
	"github.com/mcs-attest/mcs-attest/proto/mcsattest/v1/mcsattestv1connect"
)

// loadNode is one of many machines that attest concurrently. It is made to be cheap, so
// that what is measured is the verifier.
type loadNode struct {
	addr   string
	origin string
	roots  *x509.CertPool
	pool   string
	keys   nodeKeys
	// answerAt, under the binding "terminated", are where the one answer goes, each
	// on a connection of its own; the last outcome counts. Nil: where the challenge
	// came from.
	answerAt []string
}

// nodeKeys are a machine's EK and AK.
type nodeKeys interface {
	public() (ek, ak []byte, ekSPKI [32]byte, akName []byte)
	answer(ch *mcsattestv1.TpmChallenge, h transcript.Hash) (*mcsattestv1.Tpm2Evidence, error)
}

// attest is one honest attestation on a connection of its own. It returns the
// token, and how long the two calls took.
func (n *loadNode) attest(ctx context.Context) (bearer string, took time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	d := tls.Dialer{Config: &tls.Config{RootCAs: n.roots, ServerName: "mcs.test", MinVersion: tls.VersionTLS13}}
	raw, err := d.DialContext(ctx, "tcp", n.addr)
	if err != nil {
		return "", 0, err
	}
	defer raw.Close()
	conn := raw.(*tls.Conn)
	state := conn.ConnectionState()
	exporter, err := state.ExportKeyingMaterial(transcript.ExporterLabel, nil, transcript.ExporterSize)
	if err != nil {
		return "", 0, err
	}
	spki := sha256.Sum256(state.PeerCertificates[0].RawSubjectPublicKeyInfo)
	used := false
	client := mcsattestv1connect.NewAttestationClient(
		&http.Client{Transport: &http.Transport{DialTLSContext: func(context.Context, string, string) (net.Conn, error) {
			if used {
				return nil, errors.New("the connection is used up")
			}
			used = true
			return conn, nil
		}}}, n.origin)

	ek, ak, ekSPKI, akName := n.keys.public()
	start := time.Now()
	asked, err := client.Challenge(ctx, connect.NewRequest(&mcsattestv1.ChallengeRequest{
		Pool: n.pool, Origin: n.origin, AgentVersion: "load/1",
		Offered: []mcsattestv1.EvidenceKind{mcsattestv1.EvidenceKind_EVIDENCE_KIND_TPM2},
		Tpm:     &mcsattestv1.TpmIdentity{EkPublic: ek, AkPublic: ak, Banks: []uint32{uint32(tpm.TPMAlgSHA256)}},
	}))
	took = time.Since(start)
	if err != nil {
		return "", took, err
	}
	c := asked.Msg
	var pcrs []int
	for _, p := range c.GetTpm().GetPcrs() {
		pcrs = append(pcrs, int(p))
	}
	claims := []byte(`{"hostname":"load"}`)
	binding := "exporter"
	if c.GetBinding() == mcsattestv1.BindingMode_BINDING_MODE_TERMINATED {
		binding, exporter = "terminated", nil
	}
	ev, err := n.keys.answer(c.GetTpm(), transcript.Fields{
		Sealed: c.GetSealed(), Nonce: c.GetNonce(), Binding: binding, Exporter: exporter, ServerSPKI: spki[:],
		Origin: c.GetOrigin(), Pool: c.GetPool(),
		Required: transcript.Required([]evidence.Kind{evidence.TPM2}, uint16(c.GetTpm().GetBank()), pcrs),
		EKSPKI:   ekSPKI[:], AKName: akName, Claims: claims,
	}.Hash())
	if err != nil {
		return "", took, err
	}
	req := &mcsattestv1.AttestRequest{Sealed: c.GetSealed(), ServerSpkiSha256: spki[:], Claims: claims, Tpm2: ev}
	for _, addr := range n.answerAt[:max(0, len(n.answerAt)-1)] {
		if _, err := n.elsewhere(addr).Attest(ctx, connect.NewRequest(req)); err != nil {
			return "", took, err
		}
	}
	if len(n.answerAt) > 0 {
		client = n.elsewhere(n.answerAt[len(n.answerAt)-1])
	}
	start = time.Now()
	res, err := client.Attest(ctx, connect.NewRequest(req))
	took += time.Since(start)
	if err != nil {
		return "", took, err
	}
	return res.Msg.GetToken(), took, nil
}

// elsewhere is another connection.
func (n *loadNode) elsewhere(addr string) mcsattestv1connect.AttestationClient {
	return mcsattestv1connect.NewAttestationClient(&http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", addr)
		},
		TLSClientConfig:   &tls.Config{RootCAs: n.roots, ServerName: "mcs.test", MinVersion: tls.VersionTLS13},
		DisableKeepAlives: true,
	}}, n.origin)
}

// fleetKeys are machine i of a fleet of software TPMs: real evidence.
type fleetKeys struct {
	fleet *swtpmtest.Fleet
	i     int
	id    attester.Identity
}

func newFleetKeys(fleet *swtpmtest.Fleet, i int) (*fleetKeys, error) {
	k := &fleetKeys{fleet: fleet, i: i}
	return k, k.with(func(a *attester.Attester) error {
		k.id = a.Identity()
		return nil
	})
}

func (k *fleetKeys) with(use func(*attester.Attester) error) error {
	return k.fleet.With(k.i, func(c *swtpmtest.FleetConn) error {
		a, err := attester.Open(c, attester.Options{Key: attester.ECCP256, Banks: []uint16{uint16(tpm.TPMAlgSHA256)}})
		if err != nil {
			return err
		}
		return errors.Join(use(a), a.Close())
	})
}

func (k *fleetKeys) public() (ek, ak []byte, ekSPKI [32]byte, akName []byte) {
	return k.id.EKPublic, k.id.AKPublic, k.id.EKSPKI, k.id.AKName
}

func (k *fleetKeys) answer(ch *mcsattestv1.TpmChallenge, h transcript.Hash) (*mcsattestv1.Tpm2Evidence, error) {
	var out *mcsattestv1.Tpm2Evidence
	return out, k.with(func(a *attester.Attester) error {
		var pcrs []int
		for _, p := range ch.GetPcrs() {
			pcrs = append(pcrs, int(p))
		}
		ev, err := a.Attest(attester.Challenge{CredentialBlob: ch.GetCredentialBlob(),
			EncryptedSecret: ch.GetEncryptedSecret(), Bank: uint16(ch.GetBank()), PCRs: pcrs}, h)
		if err != nil {
			return err
		}
		out = &mcsattestv1.Tpm2Evidence{Quote: ev.Quote, Signature: ev.Signature, Activation: ev.Activation,
			PcrValues: ev.PCRValues}
		return nil
	})
}

// softKeys are keys in software which answer as a TPM would with PCR 11 at zero,
// in some hundred microseconds: only for measurements.
type softKeys struct {
	ek     *ecdh.PrivateKey
	ak     *ecdsa.PrivateKey
	ekPub  []byte
	akPub  []byte
	spki   [32]byte
	akName []byte
}

func newSoftKeys() (*softKeys, error) {
	ekKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	ak, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	k := &softKeys{ak: ak}
	if k.ek, err = ekKey.ECDH(); err != nil {
		return nil, err
	}
	spki, err := x509.MarshalPKIXPublicKey(&ekKey.PublicKey)
	if err != nil {
		return nil, err
	}
	k.spki = sha256.Sum256(spki)
	point := func(key *ecdsa.PublicKey) (tpm.TPMUPublicID, error) {
		b, err := key.Bytes()
		if err != nil {
			return tpm.TPMUPublicID{}, err
		}
		return tpm.NewTPMUPublicID(tpm.TPMAlgECC,
			&tpm.TPMSECCPoint{X: tpm.TPM2BECCParameter{Buffer: b[1:33]}, Y: tpm.TPM2BECCParameter{Buffer: b[33:]}}), nil
	}
	pub := tpm.ECCEKTemplate
	if pub.Unique, err = point(&ekKey.PublicKey); err != nil {
		return nil, err
	}
	k.ekPub = tpm.Marshal(pub)
	pub = tpm.TPMTPublic{
		Type: tpm.TPMAlgECC, NameAlg: tpm.TPMAlgSHA256,
		ObjectAttributes: tpm.TPMAObject{FixedTPM: true, FixedParent: true, SensitiveDataOrigin: true, UserWithAuth: true,
			NoDA: true, Restricted: true, SignEncrypt: true},
		Parameters: tpm.NewTPMUPublicParms(tpm.TPMAlgECC, &tpm.TPMSECCParms{
			Symmetric: tpm.TPMTSymDefObject{Algorithm: tpm.TPMAlgNull},
			Scheme: tpm.TPMTECCScheme{Scheme: tpm.TPMAlgECDSA,
				Details: tpm.NewTPMUAsymScheme(tpm.TPMAlgECDSA, &tpm.TPMSSigSchemeECDSA{HashAlg: tpm.TPMAlgSHA256})},
			CurveID: tpm.TPMECCNistP256, KDF: tpm.TPMTKDFScheme{Scheme: tpm.TPMAlgNull},
		}),
	}
	if pub.Unique, err = point(&ak.PublicKey); err != nil {
		return nil, err
	}
	k.akPub = tpm.Marshal(pub)
	name := sha256.Sum256(k.akPub)
	k.akName = append([]byte{0x00, 0x0B}, name[:]...)
	return k, nil
}

func (k *softKeys) public() (ek, ak []byte, ekSPKI [32]byte, akName []byte) {
	return k.ekPub, k.akPub, k.spki, k.akName
}

func (k *softKeys) answer(ch *mcsattestv1.TpmChallenge, h transcript.Hash) (*mcsattestv1.Tpm2Evidence, error) {
	if pcrs := ch.GetPcrs(); len(pcrs) != 1 || pcrs[0] != 11 {
		return nil, fmt.Errorf("PCRs %v: keys in software support only PCR 11", pcrs)
	}
	secret, err := k.activate(ch)
	if err != nil {
		return nil, err
	}
	zero := make([]byte, 32)
	digest := sha256.Sum256(zero)
	qualified := sha256.Sum256(append([]byte{0x40, 0, 0, 0x0B}, k.akName...))
	var q bytes.Buffer
	put := func(v any) { _ = binary.Write(&q, binary.BigEndian, v) } // a buffer's writes never fail
	sized := func(b []byte) { put(uint16(len(b))); q.Write(b) }
	put(uint32(0xFF544347)) // TPM_GENERATED_VALUE
	put(uint16(0x8018))     // TPM_ST_ATTEST_QUOTE
	sized(append([]byte{0x00, 0x0B}, qualified[:]...))
	sized(h[:])
	put(struct {
		Clock         uint64
		Reset, Resume uint32
		Safe          uint8
		Firmware      uint64
		Banks         uint32
	}{1000, 1, 0, 1, 7, 1})
	q.Write([]byte{0x00, 0x0B, 3, 0x00, 0x08, 0x00})
	sized(digest[:])
	sum := sha256.Sum256(q.Bytes())
	r, s, err := ecdsa.Sign(rand.Reader, k.ak, sum[:])
	if err != nil {
		return nil, err
	}
	sig := []byte{0x00, 0x18, 0x00, 0x0B} // TPM_ALG_ECDSA, TPM_ALG_SHA256
	for _, n := range [][]byte{r.Bytes(), s.Bytes()} {
		sig = append(binary.BigEndian.AppendUint16(sig, uint16(len(n))), n...)
	}
	return &mcsattestv1.Tpm2Evidence{Quote: q.Bytes(), Signature: sig, Activation: transcript.Activation(secret, h),
		PcrValues: [][]byte{zero}}, nil
}

// activate is TPM2_ActivateCredential (TPM 2.0 Library, Part 1, 24).
func (k *softKeys) activate(ch *mcsattestv1.TpmChallenge) ([]byte, error) {
	take := func(b []byte) (head, rest []byte, err error) {
		if len(b) < 2 || len(b)-2 < int(binary.BigEndian.Uint16(b)) {
			return nil, nil, errors.New("cut off")
		}
		n := 2 + int(binary.BigEndian.Uint16(b))
		return b[2:n], b[n:], nil
	}
	shared, _, err := take(ch.GetEncryptedSecret())
	if err != nil {
		return nil, err
	}
	x, rest, err := take(shared)
	if err != nil {
		return nil, err
	}
	y, _, err := take(rest)
	if err != nil {
		return nil, err
	}
	peer, err := ecdh.P256().NewPublicKey(append(append([]byte{4}, x...), y...))
	if err != nil {
		return nil, err
	}
	z, err := k.ek.ECDH(peer)
	if err != nil {
		return nil, err
	}
	seed := tpm.KDFe(crypto.SHA256, z, "IDENTITY", x, k.ek.PublicKey().Bytes()[1:33], 256)
	blob, _, err := take(ch.GetCredentialBlob())
	if err != nil {
		return nil, err
	}
	mac, identity, err := take(blob)
	if err != nil {
		return nil, err
	}
	want := hmac.New(sha256.New, tpm.KDFa(crypto.SHA256, seed, "INTEGRITY", nil, nil, 256))
	want.Write(identity)
	want.Write(k.akName)
	if !hmac.Equal(mac, want.Sum(nil)) {
		return nil, errors.New("the credential is not for these keys")
	}
	block, err := aes.NewCipher(tpm.KDFa(crypto.SHA256, seed, "STORAGE", k.akName, nil, 128))
	if err != nil {
		return nil, err
	}
	//nolint:staticcheck // SA1019: the format (Part 1, 11.4.8) is CFB
	cipher.NewCFBDecrypter(block, make([]byte, block.BlockSize())).XORKeyStream(identity, identity)
	secret, _, err := take(identity)
	return secret, err
}
