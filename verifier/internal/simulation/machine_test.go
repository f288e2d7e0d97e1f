// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"

	"connectrpc.com/connect"
	tpm "github.com/google/go-tpm/tpm2"

	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2/softtpmtest"
	"github.com/mcs-attest/mcs-attest/pkg/transcript"
	mcsattestv1 "github.com/mcs-attest/mcs-attest/proto/mcsattest/v1"
	"github.com/mcs-attest/mcs-attest/proto/mcsattest/v1/mcsattestv1connect"
)

// machine is a machine with its TPM.
type machine struct {
	name    string
	address string
	tpm     *softtpmtest.TPM
	key     *nodeKey // that it attests, or nil

	credential string // the bootstrap credential of its config; life.mu protects it
}

// connection is a TLS connection of a machine to a front. It implements http.RoundTripper.
type connection struct {
	front   *process
	address string
	states  connectionStates
	ctx     context.Context
}

// connect opens a connection. All requests on it must use its context.
func (w *world) connect(ctx context.Context, m *machine, p *process) *connection {
	n := w.dice.roll("connection of " + m.name).IntN(len(w.fixtures.connections))
	return &connection{front: p, address: m.address, states: w.fixtures.connections[n], ctx: p.http.ConnContext(ctx, nil)}
}

func (c *connection) client() *http.Client { return &http.Client{Transport: c} }

// RoundTrip implements http.RoundTripper.
func (c *connection) RoundTrip(r *http.Request) (*http.Response, error) {
	select {
	case <-c.front.client.crashed:
		return nil, refused("dial")
	default:
	}
	own := r.Clone(r.Context())
	own.TLS, own.RemoteAddr, own.RequestURI, own.Host = &c.states.server, c.address, r.URL.RequestURI(), r.URL.Host
	return served(c.front.http.Handler, own), nil
}

// attest is an honest attestation on a connection of its own. A machine with a key also gets a certificate. If it gets
// none, attest returns the token and an error.
func (w *world) attest(ctx context.Context, m *machine, p *process) (token string, err error) {
	conn := w.connect(ctx, m, p)
	client := mcsattestv1connect.NewAttestationClient(conn.client(), origin)
	asked, err := client.Challenge(conn.ctx, connect.NewRequest(&mcsattestv1.ChallengeRequest{
		Pool: "worker", Origin: origin, AgentVersion: "simulation/1",
		Offered: []mcsattestv1.EvidenceKind{mcsattestv1.EvidenceKind_EVIDENCE_KIND_TPM2},
		Tpm: &mcsattestv1.TpmIdentity{EkPublic: m.tpm.EKPublic, AkPublic: m.tpm.AKPublic,
			Banks: []uint32{uint32(tpm.TPMAlgSHA256)}},
	}))
	if err != nil {
		return "", err
	}
	req, err := m.answer(asked.Msg, conn)
	if err != nil {
		return "", err
	}
	res, err := client.Attest(conn.ctx, connect.NewRequest(req))
	if err != nil {
		return "", err
	}
	if token = res.Msg.GetToken(); m.key != nil {
		err = m.certify(conn, res.Msg.GetCertifyTicket())
	}
	return token, err
}

// answer makes the evidence for a challenge.
func (m *machine) answer(c *mcsattestv1.ChallengeResponse, conn *connection) (*mcsattestv1.AttestRequest, error) {
	exporter, err := conn.states.client.ExportKeyingMaterial(transcript.ExporterLabel, nil, transcript.ExporterSize)
	if err != nil {
		return nil, err
	}
	if c.GetTpm() == nil {
		return nil, errors.New("the challenge asks for no TPM")
	}
	spki := sha256.Sum256(conn.states.client.PeerCertificates[0].RawSubjectPublicKeyInfo)
	var pcrs []int
	for _, p := range c.GetTpm().GetPcrs() {
		pcrs = append(pcrs, int(p))
	}
	claims := []byte(fmt.Sprintf(`{"hostname":%q}`, m.name))
	var key []byte
	if m.key != nil {
		key = m.key.digest[:]
	}
	hash := transcript.Fields{
		Sealed: c.GetSealed(), Nonce: c.GetNonce(), Binding: "exporter", Exporter: exporter, ServerSPKI: spki[:],
		Origin: c.GetOrigin(), Pool: c.GetPool(),
		Required: transcript.Required([]evidence.Kind{evidence.TPM2}, uint16(c.GetTpm().GetBank()), pcrs),
		EKSPKI:   m.tpm.EKSPKI[:], AKName: m.tpm.AKName, CSRSPKI: key, Claims: claims,
	}.Hash()
	ev, err := m.tpm.Answer(c.GetTpm(), hash)
	if err != nil {
		return nil, err
	}
	return &mcsattestv1.AttestRequest{Sealed: c.GetSealed(), ServerSpkiSha256: spki[:], Claims: claims, Tpm2: ev,
		CsrSpkiSha256: key}, nil
}

// fetch asks a gate for the config as Ignition does.
func (w *world) fetch(ctx context.Context, m *machine, p *process, token string) (status int, body string, err error) {
	conn := w.connect(ctx, m, p)
	r, err := http.NewRequestWithContext(conn.ctx, http.MethodGet, origin+"/config/worker", http.NoBody)
	if err != nil {
		return 0, "", err
	}
	r.Header.Set("Accept", "application/vnd.coreos.ignition+json;version=3.4.0, */*;q=0.1")
	r.Header.Set("Authorization", "Bearer "+token)
	res, err := conn.RoundTrip(r)
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	return res.StatusCode, string(raw), err
}
