package approver

import (
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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mcs-attest/mcs-attest/pkg/approver"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
)

const (
	// kubeletTimeout is how long a kubelet may take to show its certificate.
	kubeletTimeout = 5 * time.Second
	// kubeletCAKey of the ConfigMap has the CA's certificates.
	kubeletCAKey = "ca-bundle.crt"
)

// served is the certificate that the Node's kubelet serves now, verified by the
// CA of the ConfigMap. Address and port are what the Node says of itself, and a
// Node may lie: nothing is sent there but a TLS greeting, and no answer but a
// certificate under that CA counts.
func (w *World) served(ctx context.Context, node *corev1.Node) (*approver.Presented, error) {
	namespace, name, err := config.SplitName(w.o.Config.KubeletCA)
	if err != nil {
		return nil, err
	}
	call, cancel := context.WithTimeout(ctx, w.o.Timeout)
	defer cancel()
	cm, err := w.o.Client.CoreV1().ConfigMaps(namespace).Get(call, name, metav1.GetOptions{})
	if w.absent(call, namespace, err) {
		return nil, fmt.Errorf("there is no ConfigMap %s with the CA of the kubelets", w.o.Config.KubeletCA)
	}
	if err != nil {
		return nil, fmt.Errorf("read ConfigMap %s: %w", w.o.Config.KubeletCA, err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM([]byte(cm.Data[kubeletCAKey])) {
		return nil, fmt.Errorf("ConfigMap %s has no certificate in its key %s", w.o.Config.KubeletCA, kubeletCAKey)
	}
	host, err := internalIP(node)
	if err != nil {
		return nil, err
	}
	port := node.Status.DaemonEndpoints.KubeletEndpoint.Port
	if port <= 0 || port > 65535 {
		return nil, fmt.Errorf("Node %s has the kubelet port %d", node.Name, port)
	}
	cert, err := greet(ctx, w.o.Dial, host, net.JoinHostPort(host, strconv.Itoa(int(port))), roots)
	if err != nil {
		return nil, err
	}
	return &approver.Presented{Certificate: cert, Roots: roots}, nil
}

// internalIP is the first one, as the stock approver takes it.
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

// greet returns the leaf that a TLS server proves to have the key of.
func greet(ctx context.Context, dial dial, host, address string, roots *x509.CertPool) (*x509.Certificate, error) {
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

// dialKubelet refuses what is no other machine's address: a Node that names one
// would have the verifier knock at its own host's doors, or at the cloud's
// metadata service.
func dialKubelet(ctx context.Context, network, address string) (net.Conn, error) {
	d := net.Dialer{Control: func(_, address string, _ syscall.RawConn) error {
		at, err := netip.ParseAddrPort(address)
		if err != nil {
			return err
		}
		if a := at.Addr().Unmap(); a.IsLoopback() || a.IsLinkLocalUnicast() || a.IsMulticast() || a.IsUnspecified() {
			return fmt.Errorf("%s is no address of a kubelet", a)
		}
		return nil
	}}
	return d.DialContext(ctx, network, address)
}
