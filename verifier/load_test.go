// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"time"

	"connectrpc.com/connect"
	tpm "github.com/google/go-tpm/tpm2"

	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2/attester"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2/attester/swtpmtest"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2/softtpmtest"
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
	ctx, cancel := context.WithTimeout(ctx, time.Minute) // a slow machine needs long, and may stall
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

// softKeys are keys in software, for tests with many machines.
type softKeys struct {
	*softtpmtest.TPM
	spki [32]byte
}

func newSoftKeys() (*softKeys, error) {
	k, err := softtpmtest.New()
	if err != nil {
		return nil, err
	}
	return &softKeys{k, k.EKSPKI}, nil
}

func (k *softKeys) public() (ek, ak []byte, ekSPKI [32]byte, akName []byte) {
	return k.EKPublic, k.AKPublic, k.EKSPKI, k.AKName
}

func (k *softKeys) answer(ch *mcsattestv1.TpmChallenge, h transcript.Hash) (*mcsattestv1.Tpm2Evidence, error) {
	return k.Answer(ch, h)
}
