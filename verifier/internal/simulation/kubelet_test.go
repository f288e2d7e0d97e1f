// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"math/big"
	mathrand "math/rand/v2"
	"regexp"
	"strings"
	"time"

	"connectrpc.com/connect"
	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	mcsattestv1 "github.com/mcs-attest/mcs-attest/proto/mcsattest/v1"
	"github.com/mcs-attest/mcs-attest/proto/mcsattest/v1/mcsattestv1connect"
)

const (
	controllerAccount = "system:serviceaccount:mcs-attest:mcs-attest-controller"
	bootstrapUser     = "system:bootstrap:"
	nodeUser          = "system:node:"
)

// nodeKey is the key of a kubelet.
type nodeKey struct {
	private *ecdsa.PrivateKey
	digest  [sha256.Size]byte // of its SubjectPublicKeyInfo
	request []byte            // PKCS #10, for the client certificate of its node
}

func newNodeKey(node string) (*nodeKey, error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	spki, err := x509.MarshalPKIXPublicKey(&private.PublicKey)
	if err != nil {
		return nil, err
	}
	request, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: nodeUser + node, Organization: []string{"system:nodes"}}}, private)
	return &nodeKey{private, sha256.Sum256(spki), request}, err
}

func (k *nodeKey) String() string { return hex.EncodeToString(k.digest[:]) }

// newKey gives a machine the key that it attests from now on, as at each boot.
func (l *life) newKey(uid string, m *machine) {
	var err error
	if m.key, err = newNodeKey(m.name); err != nil {
		panic(err)
	}
	l.ledger.attests(uid, m.key)
}

// certify gets the certificate for the key that a machine attested on this connection, as the agent does.
func (m *machine) certify(conn *connection, ticket string) (err error) {
	client := mcsattestv1connect.NewAttestationClient(conn.client(), origin)
	for range 4 {
		var res *connect.Response[mcsattestv1.CertifyResponse]
		res, err = client.Certify(conn.ctx,
			connect.NewRequest(&mcsattestv1.CertifyRequest{Ticket: ticket, Csr: m.key.request}))
		if err == nil {
			return checkCertificate(res.Msg.GetCertificates(), m.key)
		}
		time.Sleep(2 * time.Second)
	}
	return err
}

var errOtherKey = errors.New("the certificate has another key")

func checkCertificate(chain [][]byte, k *nodeKey) error {
	if len(chain) == 0 {
		return errors.New("no certificate")
	}
	leaf, err := x509.ParseCertificate(chain[0])
	if err != nil {
		return err
	}
	if sha256.Sum256(leaf.RawSubjectPublicKeyInfo) != k.digest {
		return errOtherKey
	}
	return nil
}

// inConfig is a bootstrap token in a data URL.
var inConfig = regexp.MustCompile(`%22([a-z0-9]{6}\.[a-z0-9]{16})%22`)

// received checks a config that a machine got. It never contains the credential that all nodes share. If it contains a
// bootstrap credential, that is one of this Machine, and it was not deleted.
func (l *life) received(m *machine, token, config string) {
	own, uid := "", claimsOf(token).MachineUID
	if found := inConfig.FindStringSubmatch(config); found != nil {
		own = found[1]
	}
	known := own == "" || l.server.get(named("secrets"), "kube-system", "bootstrap-token-"+own[:6]) != nil
	l.ledger.mu.Lock()
	defer l.ledger.mu.Unlock()
	if strings.Contains(config, "%22shared%22") {
		l.ledger.violated("%s receives the credential that all nodes share", uid)
	}
	if own == "" {
		return
	}
	l.mu.Lock()
	l.credentials[uid], m.credential = own, own
	l.mu.Unlock()
	if first := l.ledger.given[bootstrapUser+own[:6]]; first != "" && first != uid {
		l.ledger.violated("%s receives the credential of %s", uid, first)
	}
	l.ledger.given[bootstrapUser+own[:6]] = uid
	revoked := !l.ledger.quarantined[uid].IsZero() || !l.ledger.deleted[uid].IsZero()
	if !known && !revoked && l.ledger.restored.IsZero() {
		l.ledger.violated("%s receives a credential that was deleted", uid)
	}
}

// asks creates the request of a kubelet with a bootstrap credential. The API server accepts a credential that has a
// Secret.
func (l *life) asks(own string, k *nodeKey) (request string, err error) {
	id, key, _ := strings.Cut(own, ".")
	s := l.server.get(named("secrets"), "kube-system", "bootstrap-token-"+id)
	if s == nil || text(section(s.content, "data"), "token-secret") != base64.StdEncoding.EncodeToString([]byte(key)) {
		return "", errors.New("401")
	}
	o, err := l.create("certificatesigningrequests", "", fields{
		"metadata": fields{"generateName": "csr-"},
		"spec": fields{
			"signerName": certificatesv1.KubeAPIServerClientKubeletSignerName,
			"request":    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: k.request}),
			"usages":     []string{"digital signature", "client auth"}, "username": bootstrapUser + id,
			"groups": []string{"system:bootstrappers", "system:authenticated", "system:bootstrappers:mcs-attest"},
		}})
	if err != nil {
		return "", err
	}
	return o.name, nil
}

// state returns whether a request has a certificate, and whether it was denied.
func (l *life) state(request string) (issued, denied bool) {
	o := l.server.get(named("certificatesigningrequests"), "", request)
	if o == nil {
		return false, true
	}
	return text(section(o.content, "status"), "certificate") != "", has(o, "Denied")
}

// has reports whether a request has a condition.
func has(o *object, kind string) bool {
	conditions, _ := section(o.content, "status")["conditions"].([]any)
	for _, c := range conditions {
		if c, ok := c.(fields); ok && text(c, "type") == kind {
			return true
		}
	}
	return false
}

// kubelet waits for the certificate of a machine that has its config. A kubelet keeps its key.
func (l *life) kubelet(name string, m *machine, r *mathrand.Rand) bool {
	if m.key != nil {
		return true // the agent has the certificate
	}
	k, err := newNodeKey(name)
	if err != nil {
		panic(err)
	}
	l.mu.Lock()
	own := m.credential
	l.mu.Unlock()
	for ; !l.ended(name); time.Sleep(between(r, time.Second, 10*time.Second)) {
		request, err := l.asks(own, k)
		if err != nil {
			continue
		}
		for issued, denied := false, false; !denied && !l.ended(name); time.Sleep(time.Second) {
			if issued, denied = l.state(request); issued {
				return true
			}
		}
	}
	return false
}

// impostor has a machine's bootstrap credential. It requests the certificate of that machine, or of another one, with a
// key of its own. The first of two keys is approved, so the machine may stay out.
func (l *life) impostor(token string, r *mathrand.Rand) {
	uid := claimsOf(token).MachineUID
	l.mu.Lock()
	own := l.credentials[uid]
	l.mu.Unlock()
	all, _ := l.server.list(func(o *object) bool { return o.kind == named("machines") })
	if own == "" || len(all) == 0 {
		return
	}
	victim := all[r.IntN(len(all))]
	if r.IntN(2) == 0 {
		for _, o := range all {
			if text(o.meta(), "uid") == uid {
				victim = o
			}
		}
	}
	k, err := newNodeKey(victim.name)
	if err != nil {
		panic(err)
	}
	l.mu.Lock()
	if !l.in[victim.name] && text(victim.meta(), "uid") == uid { // the credential is of no use against other Machines
		l.out[victim.name] = true
	}
	l.mu.Unlock()
	_, _ = l.asks(own, k)
}

// sign is the signer of kube-controller-manager, until stop is closed.
func (l *life) sign(stop <-chan struct{}) {
	for r := l.dice.roll("signer"); ; {
		select {
		case <-stop:
			return
		case <-time.After(between(r, 0, 2*time.Second)):
		}
		for _, o := range l.ledger.unsigned() {
			_, err := l.server.change(write{by: "signer", kind: o.kind, name: o.name, sub: "status"},
				func(now fields) (fields, error) {
					status := section(now, "status")
					chain, err := l.fixtures.issue(text(section(now, "spec"), "request"))
					if status != nil && err == nil {
						status["certificate"] = chain
					}
					return now, err
				})
			if err != nil && !apierrors.IsNotFound(err) { // a restore of etcd lost it
				panic(err)
			}
		}
	}
}

// issue returns the certificate (PEM) for a request in base64.
func (f *fixtures) issue(request string) ([]byte, error) {
	csr, err := parseRequest(request)
	if err != nil {
		return nil, err
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{SerialNumber: big.NewInt(1), Subject: csr.Subject,
		NotBefore: epoch, NotAfter: epoch.Add(24 * time.Hour)}, &x509.Certificate{}, csr.PublicKey, f.signer.private)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), err
}

func parseRequest(encoded string) (*x509.CertificateRequest, error) {
	raw, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(raw)
	if block == nil {
		return nil, errors.New("the request is not PEM")
	}
	return x509.ParseCertificateRequest(block.Bytes)
}

// approvals are the part of the ledger about certificates.
type approvals struct {
	machines map[string]string            // UIDs, by name
	attested map[string]map[string]bool   // keys that a machine attested, by the UID of its Machine
	given    map[string]string            // the UID of the Machine that got a bootstrap credential, by its user
	keys     map[string]map[string]string // the requester of each approved key, by the UID of the Machine
	waiting  []*object                    // for the signer
	// rewritten are the records that a controller wrote after the last restore of etcd, by the UID of the Machine.
	rewritten map[string]bool
}

func newApprovals() approvals {
	return approvals{machines: map[string]string{}, attested: map[string]map[string]bool{}, given: map[string]string{},
		keys: map[string]map[string]string{}, rewritten: map[string]bool{}}
}

func (l *ledger) unsigned() []*object {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := l.waiting
	l.waiting = nil
	return all
}

// attests receives each key before a machine attests it.
func (l *ledger) attests(uid string, k *nodeKey) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.attested[uid] == nil {
		l.attested[uid] = map[string]bool{}
	}
	l.attested[uid][k.String()] = true
}

// interrupted is the number of first boots after which a machine that attests its key may still join.
const interrupted = 2

// certificate checks the approval of a request for the certificate of a node:
//
//   - the machine of that Node attested the key, or a gate gave it the credential of the request
//   - its Machine exists, is not quarantined and has no Node
//   - it has one approved key, or one for each first boot that was interrupted
func (l *ledger) certificate(c change) {
	if c.after == nil || !has(c.after, "Approved") || c.before != nil && has(c.before, "Approved") {
		return
	}
	spec := section(c.after.content, "spec")
	csr, err := parseRequest(text(spec, "request"))
	if err != nil {
		l.violated("%s approves %s, which does not parse: %v", c.by, c.after.name, err)
		return
	}
	node, requester, key := subject(csr), text(spec, "username"), digest(csr)
	uid := l.machines[node]
	switch {
	case uid == "":
		l.violated("%s approves a certificate for %s, which is no Machine", c.by, node)
	case requester == controllerAccount && !l.attested[uid][key]:
		l.violated("%s approves a key for %s that it did not attest", c.by, node)
	case requester != controllerAccount && l.given[requester] != uid:
		l.violated("%s approves a certificate for %s with the credential of another machine", c.by, node)
	}
	for name, at := range map[string]time.Time{"was quarantined": l.quarantined[uid], "was deleted": l.deleted[uid],
		"had a Node": l.joined[uid]} {
		// A process that has not noticed a restore of etcd approves what could be approved at the time of the backup.
		if !at.IsZero() && c.at.Sub(at) > seen && time.Since(l.restored) > noticed {
			l.violated("%s approves a certificate for %s, which %s", c.by, node, name)
		}
	}
	l.waiting = append(l.waiting, c.after)
	l.approves(uid, key, requester)
	for _, by := range l.keys[uid] {
		if n := len(l.keys[uid]); n > 1+interrupted || n > 1 && by != controllerAccount {
			l.violated("%s approves %d keys for %s", c.by, n, node)
			return
		}
	}
}

func (l *ledger) approves(uid, key, requester string) {
	if l.keys[uid] == nil {
		l.keys[uid] = map[string]string{}
	}
	l.keys[uid][key] = requester
}

// restoreApprovals keeps only the approvals of a backup. No process remembers an approval that a restore of etcd lost,
// but one may remember that the machine joined.
func (l *ledger) restoreApprovals(b backup) {
	clear(l.keys)
	clear(l.rewritten)
	for _, o := range b.objects {
		if o.kind.resource != "certificatesigningrequests" || !has(o, "Approved") {
			continue
		}
		spec := section(o.content, "spec")
		if csr, err := parseRequest(text(spec, "request")); err == nil {
			l.approves(l.machines[subject(csr)], digest(csr), text(spec, "username"))
		}
	}
}

func subject(csr *x509.CertificateRequest) (node string) {
	return strings.TrimPrefix(csr.Subject.CommonName, nodeUser)
}

func digest(csr *x509.CertificateRequest) string {
	sum := sha256.Sum256(csr.RawSubjectPublicKeyInfo)
	return hex.EncodeToString(sum[:])
}
