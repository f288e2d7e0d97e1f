// SPDX-License-Identifier: Apache-2.0

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

// Limits of a request. A kubelet's request has less than a thousand bytes, and one name
// for each address of its node.
const (
	MaxRequest = 16 << 10 // bytes of PEM
	MaxNames   = 100      // subject alternative names
	MaxRSA     = 4096     // bits
)

// extraCredentialID is the key under which the API server records the credential of a
// requester (k8s.io/apiserver, user.CredentialIDKey).
const extraCredentialID = "authentication.kubernetes.io/credential-id"

// Names of Kubernetes and OpenShift, and defaults.
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

// Request is a certificate signing request: the API server's fields and the parsed
// content.
type Request struct {
	Name string
	// Kind depends on the signer; it is "" for other signers.
	Kind    Kind
	Signer  string
	Created time.Time
	// Decided reports that the request is approved, denied or failed.
	Decided  bool
	Approved bool

	// Username and Groups identify the requester, as the API server recorded them.
	Username string
	Groups   []string
	// CredentialID is the credential of the requester: "JTI=" and the ID of a service
	// account's token, the user of a bootstrap token, or another authenticator's value. It
	// is "" if the API server recorded none.
	CredentialID string

	Usages []certificatesv1.KeyUsage
	// Lifetime is that of the certificate, if the requester chose one. Otherwise it is 0.
	Lifetime time.Duration
	// CSR is the untrusted content; nil if it does not parse.
	CSR *x509.CertificateRequest
	// PublicKeySHA256 is the hash of CSR's SubjectPublicKeyInfo, in hexadecimal.
	PublicKeySHA256 string
	// Malformed is the error if CSR is nil.
	Malformed error
}

// Node returns the node name that the request has, or "".
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

// FromCSR converts a request. It never fails; an error in the content is in Malformed.
func FromCSR(in *certificatesv1.CertificateSigningRequest) *Request {
	r := &Request{
		Name: in.Name, Signer: in.Spec.SignerName, Created: in.CreationTimestamp.Time,
		Username: in.Spec.Username, Groups: in.Spec.Groups, Usages: in.Spec.Usages,
	}
	if s := in.Spec.ExpirationSeconds; s != nil {
		r.Lifetime = time.Duration(*s) * time.Second
	}
	switch in.Spec.SignerName {
	case certificatesv1.KubeAPIServerClientKubeletSignerName:
		r.Kind = Client
	case certificatesv1.KubeletServingSignerName:
		r.Kind = Serving
	default:
		return r // another signer's: do not parse its content
	}
	for _, c := range in.Status.Conditions {
		if c.Status != corev1.ConditionFalse {
			r.Decided = true
			r.Approved = r.Approved || c.Type == certificatesv1.CertificateApproved
		}
	}
	// More than one credential is ambiguous and counts as none.
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

// parse parses the content of a request. It checks, cheap checks first,
//
//   - the size: at most MaxRequest bytes
//   - the PEM: one block of the right type, without headers or trailing data
//   - the ASN.1, without trailing data
//   - the number of subject alternative names
//   - the key: RSA of 2048 to MaxRSA bits, ECDSA, or Ed25519
//   - the signature: the requester has the private key
func parse(raw []byte) (*x509.CertificateRequest, error) {
	malformed := func(format string, a ...any) error { return reason.Deny(reason.CSRMalformed, format, a...) }
	if len(raw) > MaxRequest {
		return nil, malformed("the request has %d bytes; at most %d are allowed", len(raw), MaxRequest)
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
		return nil, malformed("the request has %d names; at most %d are allowed", n, MaxNames)
	}
	switch key := csr.PublicKey.(type) {
	case *rsa.PublicKey:
		if bits := key.N.BitLen(); bits < 2048 || bits > MaxRSA {
			return nil, malformed("the RSA key has %d bits; 2048 to %d are allowed", bits, MaxRSA)
		}
	case *ecdsa.PublicKey, ed25519.PublicKey:
	default:
		return nil, malformed("the key has an unsupported type (%T)", csr.PublicKey)
	}
	if err := csr.CheckSignature(); err != nil {
		return nil, reason.Wrap(reason.CSRMalformed, err, "the request is not signed with its own key")
	}
	return csr, nil
}

// Bootstrapper reports whether the user requests the kubelets' first client certificates.
func (c Config) Bootstrapper(user string) bool {
	_, ok := c.withDefaults().bootstrapper(user)
	return ok
}

// bootstrapper reports whether the user requests client certificates, and returns the
// groups that it must be in, exactly.
func (c Config) bootstrapper(user string) (groups []string, ok bool) {
	if c.BootstrapTokens {
		return append([]string{bootstrappers, authenticated}, c.BootstrapGroups...), len(user) > len(bootstrapPrefix) &&
			strings.HasPrefix(user, bootstrapPrefix)
	}
	namespace, name, _ := strings.Cut(c.ServiceAccount, "/")
	return []string{serviceAccounts, serviceAccounts + ":" + namespace, authenticated},
		user == fmt.Sprintf("%s%s:%s", serviceAccount, namespace, name)
}
