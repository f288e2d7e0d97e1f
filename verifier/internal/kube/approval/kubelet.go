// SPDX-License-Identifier: Apache-2.0

package approval

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/mcs-attest/mcs-attest/pkg/approver"
)

const (
	// kubeletTimeout bounds the connection to a kubelet that presents its certificate.
	kubeletTimeout = 5 * time.Second
	// kubeletCAKey is the key of the CA certificates in the ConfigMap.
	kubeletCAKey = "ca-bundle.crt"
)

// ServingCertificate implements [approver.Cluster]. It returns a certificate that the CA of the ConfigMap verified.
// The address and the port come from the status of the Node and are untrusted. So the reader sends only a TLS
// ClientHello and accepts only a certificate under that CA.
func (r *Reader) ServingCertificate(ctx context.Context, name string) (*approver.Presented, error) {
	node := new(corev1.Node)
	if ok, err := r.get(ctx, "", name, node); !ok {
		return nil, cmp.Or(err, fmt.Errorf("Node %.80q does not exist", name))
	}
	roots, err := r.KubeletRoots(ctx)
	if err != nil {
		return nil, err
	}
	host, err := internalIP(node)
	if err != nil {
		return nil, err
	}
	port := node.Status.DaemonEndpoints.KubeletEndpoint.Port
	if port <= 0 || port > 65535 {
		return nil, fmt.Errorf("Node %s has the kubelet port %d", node.Name, port)
	}
	cert, err := servedCertificate(ctx, r.o.Dial, host, net.JoinHostPort(host, strconv.Itoa(int(port))), roots)
	if err != nil {
		return nil, err
	}
	return &approver.Presented{Certificate: cert, Roots: roots}, nil
}

// KubeletRoots reads the CA certificates for the serving certificates of kubelets.
func (r *Reader) KubeletRoots(ctx context.Context) (*x509.CertPool, error) {
	cm, err := r.configMap(ctx, r.o.Config.KubeletCA)
	if err != nil {
		return nil, err
	}
	if cm == nil {
		return nil, fmt.Errorf("ConfigMap %s with the CA of the kubelets does not exist", r.o.Config.KubeletCA)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM([]byte(cm.Data[kubeletCAKey])) {
		return nil, fmt.Errorf("ConfigMap %s has no certificate in its key %s", r.o.Config.KubeletCA, kubeletCAKey)
	}
	return roots, nil
}

// internalIP returns the first InternalIP of a Node, as the stock approver does.
func internalIP(node *corev1.Node) (string, error) {
	for _, a := range node.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			if _, err := netip.ParseAddr(a.Address); err != nil {
				return "", fmt.Errorf("Node %s has %.80q as its InternalIP", node.Name, a.Address)
			}
			return a.Address, nil
		}
	}
	return "", fmt.Errorf("Node %s has no InternalIP", node.Name)
}

type dial func(ctx context.Context, network, address string) (net.Conn, error)

// servedCertificate connects to a TLS server and returns its verified leaf certificate.
func servedCertificate(ctx context.Context, dial dial, host, address string, roots *x509.CertPool) (
	*x509.Certificate, error) {
	ctx, cancel := context.WithTimeout(ctx, kubeletTimeout)
	defer cancel()
	raw, err := dial(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("reach the kubelet: %w", err)
	}
	conn := tls.Client(raw, &tls.Config{RootCAs: roots, ServerName: host, MinVersion: tls.VersionTLS12})
	defer conn.Close()
	if err := conn.HandshakeContext(ctx); err != nil {
		return nil, fmt.Errorf("the kubelet at %s: %w", address, err)
	}
	return conn.ConnectionState().PeerCertificates[0], nil
}

// dialKubelet connects to a kubelet. It rejects addresses of this host and of the cloud's metadata service, which a
// malicious Node could name as its own.
func dialKubelet(ctx context.Context, network, address string) (net.Conn, error) {
	d := net.Dialer{Control: func(_, address string, _ syscall.RawConn) error {
		at, err := netip.ParseAddrPort(address)
		if err != nil {
			return err
		}
		if a := at.Addr().Unmap(); a.IsLoopback() || a.IsLinkLocalUnicast() || a.IsMulticast() || a.IsUnspecified() {
			return fmt.Errorf("%s is not an address of a kubelet", a)
		}
		return nil
	}}
	return d.DialContext(ctx, network, address)
}
