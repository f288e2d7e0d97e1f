package approver

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// Limits of a request. A kubelet's has under a thousand bytes, and as many names as
// its node has addresses.
const (
	MaxRequest = 16 << 10 // bytes of PEM
	MaxNames   = 100      // subject alternative names
	MaxRSA     = 4096     // bits
)

// extraCredentialID is under which name the API server notes the credential of a
// request's maker (k8s.io/apiserver, user.CredentialIDKey).
const extraCredentialID = "authentication.kubernetes.io/credential-id"

// Names that Kubernetes gives.
const (
	nodePrefix        = "system:node:"
	nodesGroup        = "system:nodes"
	authenticated     = "system:authenticated"
	bootstrapPrefix   = "system:bootstrap:"
	bootstrappers     = "system:bootstrappers"
	serviceAccount    = "system:serviceaccount:"
	serviceAccounts   = "system:serviceaccounts"
	defaultBootstrap  = "openshift-machine-config-operator/node-bootstrapper"
	requestBlock      = "CERTIFICATE REQUEST"
	defaultMachineAge = 2 * time.Hour
	defaultPending    = 10
)

// Request is a certificate signing request: what the API server says of it, and
// what it asks for.
type Request struct {
	Name string
	// Kind is by the signer; empty where the signer is another.
	Kind    Kind
	Signer  string
	Created time.Time
	// Decided: it is approved or denied, or has failed.
	Decided  bool
	Approved bool

	// Who made it, in the API server's words.
	Username string
	Groups   []string
	// CredentialID is what it was made with: "JTI=" and the id of a service account's
	// token, the user of a bootstrap token, or another authenticator's word. Empty
	// where the API server names none.
	CredentialID string

	Usages []certificatesv1.KeyUsage
	// CSR is what it asks for; nil if that does not parse. Untrusted.
	CSR *x509.CertificateRequest
	// PublicKeySHA256 of CSR's SubjectPublicKeyInfo, hexadecimal.
	PublicKeySHA256 string
	// Malformed is why there is no CSR.
	Malformed error
}

// Node is the name that the request asks for; empty if it asks for no node's.
func (r *Request) Node() string {
	if r.CSR == nil {
		return ""
	}
	name, ok := strings.CutPrefix(r.CSR.Subject.CommonName, nodePrefix)
	if !ok {
		return ""
	}
	return name
}

// FromCSR reads a request. It never fails: what is wrong with the request itself is
// in Malformed.
func FromCSR(in *certificatesv1.CertificateSigningRequest) *Request {
	r := &Request{
		Name: in.Name, Signer: in.Spec.SignerName, Created: in.CreationTimestamp.Time,
		Username: in.Spec.Username, Groups: in.Spec.Groups, Usages: in.Spec.Usages,
	}
	switch in.Spec.SignerName {
	case certificatesv1.KubeAPIServerClientKubeletSignerName:
		r.Kind = Client
	case certificatesv1.KubeletServingSignerName:
		r.Kind = Serving
	default:
		return r // not ours: its bytes are not even looked at
	}
	for _, c := range in.Status.Conditions {
		if c.Status != corev1.ConditionFalse {
			r.Decided = true
			r.Approved = r.Approved || c.Type == certificatesv1.CertificateApproved
		}
	}
	// One value, or none: two credentials in one request have no meaning here.
	if ids := in.Spec.Extra[extraCredentialID]; len(ids) == 1 {
		r.CredentialID = ids[0]
	} else if len(ids) == 0 && strings.HasPrefix(r.Username, bootstrapPrefix) {
		r.CredentialID = r.Username
	}
	if r.CSR, r.Malformed = parse(in.Spec.Request); r.CSR != nil {
		sum := sha256.Sum256(r.CSR.RawSubjectPublicKeyInfo)
		r.PublicKeySHA256 = hex.EncodeToString(sum[:])
	}
	return r
}

// parse reads the bytes of a request and checks, cheap things first,
//
//   - that there are no more than MaxRequest of them
//   - one PEM block of the right type, with no headers, and nothing after it
//   - its ASN.1, and that nothing follows it
//   - the number of subject alternative names
//   - the key: RSA of 2048 to MaxRSA bits, ECDSA, or Ed25519
//   - the signature: whoever asks has the key
func parse(raw []byte) (*x509.CertificateRequest, error) {
	malformed := func(format string, a ...any) error { return reason.Deny(reason.CSRMalformed, format, a...) }
	if len(raw) > MaxRequest {
		return nil, malformed("the request has %d bytes; at most %d are read", len(raw), MaxRequest)
	}
	block, rest := pem.Decode(raw)
	switch {
	case block == nil:
		return nil, malformed("the request is not PEM")
	case block.Type != requestBlock:
		return nil, malformed("the request is a %.40q, not a %q", block.Type, requestBlock)
	case len(block.Headers) > 0:
		return nil, malformed("the PEM block has headers")
	case len(bytes.TrimSpace(rest)) > 0:
		return nil, malformed("%d bytes follow the PEM block", len(rest))
	}
	csr, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, reason.Wrap(reason.CSRMalformed, err, "the request does not parse")
	}
	if n := len(csr.DNSNames) + len(csr.IPAddresses) + len(csr.EmailAddresses) + len(csr.URIs); n > MaxNames {
		return nil, malformed("the request has %d names; at most %d are taken", n, MaxNames)
	}
	switch key := csr.PublicKey.(type) {
	case *rsa.PublicKey:
		if bits := key.N.BitLen(); bits < 2048 || bits > MaxRSA {
			return nil, malformed("an RSA key of %d bits; from 2048 to %d are taken", bits, MaxRSA)
		}
	case *ecdsa.PublicKey, ed25519.PublicKey:
	default:
		return nil, malformed("a key of an unknown sort (%T)", csr.PublicKey)
	}
	if err := csr.CheckSignature(); err != nil {
		return nil, reason.Wrap(reason.CSRMalformed, err, "the request is not signed with its own key")
	}
	return csr, nil
}

// Bootstrapper reports whether this user asks for kubelets' first client certificates.
func (c Config) Bootstrapper(user string) bool {
	_, ok := c.withDefaults().bootstrapper(user)
	return ok
}

// bootstrapper is who asks for client certificates: whether this user is one, and
// the groups that it must be in, neither more nor fewer.
func (c Config) bootstrapper(user string) (groups []string, ok bool) {
	if c.BootstrapTokens {
		return append([]string{bootstrappers, authenticated}, c.BootstrapGroups...), len(user) > len(bootstrapPrefix) &&
			strings.HasPrefix(user, bootstrapPrefix)
	}
	namespace, name, _ := strings.Cut(c.ServiceAccount, "/")
	return []string{serviceAccounts, serviceAccounts + ":" + namespace, authenticated},
		user == fmt.Sprintf("%s%s:%s", serviceAccount, namespace, name)
}
