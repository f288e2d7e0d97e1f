package mcscerts

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/openshift/library-go/pkg/crypto"
	"github.com/openshift/library-go/pkg/operator/certrotation"
	corev1 "k8s.io/api/core/v1"
)

const (
	year = 365 * 24 * time.Hour
	// Validity and Refresh are the machine-config-operator's.
	Validity = 10 * year
	Refresh  = 8 * year
	// Publish is how old a CA is at least before something new is signed with it,
	// where it does not wait for a tenth of Refresh: on an administrator's word, and in
	// the last month. A machine that boots now is done by then, and one whose clock is a
	// day behind takes the CA for valid: a CA begins when it is made, unlike a serving
	// certificate (see backdate).
	Publish = 25 * time.Hour
	// atLast is how long before its end a serving certificate is replaced however
	// young the CA is.
	atLast = 30 * 24 * time.Hour
	// backdate tolerates nodes whose clocks are behind.
	backdate = 24 * time.Hour
)

// serving is what is known when it is decided whether the serving certificate is
// to be replaced.
type serving struct {
	now    time.Time
	leaf   *x509.Certificate // nil: there is none
	hosts  []string          // that it should be for
	signer *x509.Certificate // of the next one
	bundle []*x509.Certificate
	// published: every pointer config that can be written has the signer's CA.
	published bool
	// lacking: a pointer config that is somebody else's does not.
	lacking bool
	force   bool
}

// due says why the serving certificate is to be replaced now; "" if it is not:
//
//   - there is none, it has expired, or no CA of the bundle issued it: at once;
//   - an administrator says so: at once;
//   - it is not for all host names, or is past its renewal: if it and the next one have
//     the same CA, or the new CA is old enough (see [Follows]) and published. In the last
//     month only pointer configs that the verifier writes are waited for.
func (s serving) due() string {
	if s.leaf == nil {
		return "there is none"
	}
	if !s.now.Before(s.leaf.NotAfter) {
		return "it has expired"
	}
	if issuerOf(s.leaf, s.bundle) == nil {
		return "no CA of the bundle issued it"
	}
	if s.force {
		return "it was asked for"
	}
	why := "it is past its renewal on " + day(Renewal(s.leaf))
	if missing := Missing(s.leaf, s.hosts); len(missing) > 0 {
		why = "it is not for " + strings.Join(missing, ", ")
	}
	switch {
	case s.now.Before(Follows(s.leaf, s.signer, s.hosts)):
		return ""
	case s.leaf.CheckSignatureFrom(s.signer) == nil:
		return why
	case !s.published, s.lacking && s.leaf.NotAfter.Sub(s.now) >= atLast:
		return ""
	}
	return why
}

// Follows is when the serving certificate is replaced by one that the signer signs: at
// its renewal, or, where it is not for all hosts, before that. With another CA than its
// own it waits until that is a tenth of Refresh old, or in the last month [Publish].
func Follows(leaf, signer *x509.Certificate, hosts []string) time.Time {
	at := Renewal(leaf)
	if len(Missing(leaf, hosts)) > 0 {
		at = leaf.NotBefore
	}
	if leaf.CheckSignatureFrom(signer) == nil {
		return at
	}
	known := signer.NotBefore.Add(Refresh / 10)
	last := leaf.NotAfter.Add(-atLast)
	if published := signer.NotBefore.Add(Publish); last.Before(published) {
		last = published
	}
	if last.Before(known) {
		known = last
	}
	if at.Before(known) {
		return known
	}
	return at
}

// Missing are the hosts that a certificate is not for.
func Missing(c *x509.Certificate, hosts []string) []string {
	have := Hosts(c)
	return slices.DeleteFunc(canonical(hosts), func(h string) bool { return slices.Contains(have, h) })
}

// Renewal is when a certificate of ours is to be replaced.
func Renewal(c *x509.Certificate) time.Time {
	four5ths := c.NotAfter.Add(-c.NotAfter.Sub(c.NotBefore) / 5)
	if refresh := c.NotBefore.Add(Refresh); refresh.Before(four5ths) {
		return refresh
	}
	return four5ths
}

func day(t time.Time) string { return t.UTC().Format(time.DateOnly) }

// issuerOf is the CA that signed a certificate; nil if it is none of them.
func issuerOf(leaf *x509.Certificate, cas []*x509.Certificate) *x509.Certificate {
	for _, ca := range cas {
		if bytes.Equal(ca.RawSubject, leaf.RawIssuer) && leaf.CheckSignatureFrom(ca) == nil {
			return ca
		}
	}
	return nil
}

// Hosts are the names and addresses that a certificate is for, sorted.
func Hosts(c *x509.Certificate) []string {
	hosts := slices.Clone(c.DNSNames)
	for _, ip := range c.IPAddresses {
		hosts = append(hosts, ip.String())
	}
	return canonical(hosts)
}

func canonical(hosts []string) []string {
	var all []string
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			h = ip.String()
		}
		all = append(all, strings.ToLower(h))
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// newLeaf makes a serving certificate on a new P-256 key: a handshake with
// RSA-2048 costs the server twenty times as much.
func newLeaf(ca *x509.Certificate, caKey any, hosts []string, now, notAfter time.Time) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	hosts = canonical(hosts)
	if len(hosts) == 0 {
		return nil, nil, errors.New("no host names: set certificates.hostnames or origins")
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make key: %w", err)
	}
	spki, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return nil, nil, fmt.Errorf("encode key: %w", err)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, nil, fmt.Errorf("make serial number: %w", err)
	}
	id := sha256.Sum256(spki)
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: hosts[0]},
		NotBefore: now.Add(-backdate), NotAfter: notAfter,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true, SubjectKeyId: id[:20], AuthorityKeyId: ca.SubjectKeyId,
	}
	if notAfter.After(ca.NotAfter) {
		template.NotAfter = ca.NotAfter
	}
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, h)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca, key.Public(), caKey)
	if err != nil {
		return nil, nil, fmt.Errorf("sign: %w", err)
	}
	leaf, err := x509.ParseCertificate(der)
	return leaf, key, err
}

// creator is the serving certificate as library-go's rotation asks for it.
type creator struct {
	hosts     []string
	published bool
	lacking   bool
	force     bool
}

// NewCertificate implements certrotation.TargetCertCreator.
func (c *creator) NewCertificate(signer *crypto.CA, validity time.Duration) (*crypto.TLSCertificateConfig, error) {
	ca := signer.Config.Certs[0]
	now := time.Now()
	leaf, key, err := newLeaf(ca, signer.Config.Key, c.hosts, now, now.Add(validity))
	if err != nil {
		return nil, fmt.Errorf("serving certificate: %w", err)
	}
	return &crypto.TLSCertificateConfig{Certs: append([]*x509.Certificate{leaf}, signer.Config.Certs...), Key: key}, nil
}

// NeedNewTargetCertKeyPair implements certrotation.TargetCertCreator. It looks at
// the certificate and not at annotations: the installer's has none.
func (c *creator) NeedNewTargetCertKeyPair(s *corev1.Secret, signer *crypto.CA, bundle []*x509.Certificate, _ time.Duration, _, creationRequired bool) string {
	state := serving{now: time.Now(), hosts: c.hosts, signer: signer.Config.Certs[0], bundle: bundle, published: c.published, lacking: c.lacking, force: c.force}
	if chain, err := parseCertificates(s.Data[corev1.TLSCertKey]); err == nil && !creationRequired {
		state.leaf = chain[0]
	}
	return state.due()
}

// SetAnnotations implements certrotation.TargetCertCreator.
func (c *creator) SetAnnotations(cert *crypto.TLSCertificateConfig, annotations map[string]string) map[string]string {
	annotations[certrotation.CertificateHostnames] = strings.Join(Hosts(cert.Certs[0]), ",")
	return annotations
}

// parseCertificates reads certificates in PEM; there is at least one.
func parseCertificates(raw []byte) ([]*x509.Certificate, error) {
	var all []*x509.Certificate
	for block, rest := pem.Decode(raw); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("certificate %d: %w", len(all), err)
		}
		all = append(all, c)
	}
	if len(all) == 0 {
		return nil, errors.New("no certificate in PEM")
	}
	return all, nil
}

// EncodeBundle is certificates in PEM.
func EncodeBundle(all []*x509.Certificate) []byte {
	var b bytes.Buffer
	for _, c := range all {
		// A bytes.Buffer takes everything.
		_ = pem.Encode(&b, &pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})
	}
	return b.Bytes()
}
