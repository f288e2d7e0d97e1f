package csr

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/approver"
	"github.com/mcs-attest/mcs-attest/pkg/manifest"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
)

// fileWorld is a cluster as files have it: what is not in them is not there. It
// implements [approver.World]; which of the Machines have a name the decision itself
// sees to.
type fileWorld struct {
	at                   time.Time // as of when it is decided
	attestation          bool
	rules                approver.Config
	configMap, kubeletCA string // names of ConfigMaps, "namespace/name"
	requests             []certificatesv1.CertificateSigningRequest
	machines             []approver.Machine
	records              []v1alpha1.MachineAttestation
	quarantines          []v1alpha1.MachineAttestation
	nodes                []string
	configMaps           map[string]map[string]string
	network              string
	egress               map[string]*approver.Egress
	certificate          []byte // PEM, of --serving-certificate
	authority            []byte // PEM, of --kubelet-ca
}

func newFileWorld(a *config.Approver, rules approver.Config) *fileWorld {
	return &fileWorld{
		rules: rules, attestation: a.Attestation != config.AttestationOff, configMap: a.ConfigMap, kubeletCA: a.KubeletCA,
		configMaps: map[string]map[string]string{}, egress: map[string]*approver.Egress{},
	}
}

// read takes the objects of one file; those that do not matter are passed over.
func (w *fileWorld) read(file string, raw []byte) error {
	docs, problems := manifest.Split(file, raw)
	for _, doc := range docs {
		problems = append(problems, w.take(doc)...)
	}
	var errs []error
	for _, p := range problems {
		if !p.Warning {
			errs = append(errs, p)
		}
	}
	return errors.Join(errs...)
}

func (w *fileWorld) take(doc manifest.Document) []manifest.Problem {
	group, _, _ := strings.Cut(doc.APIVersion, "/")
	switch group + "/" + doc.Kind {
	case "certificates.k8s.io/CertificateSigningRequest":
		var csr certificatesv1.CertificateSigningRequest
		problems := doc.DecodeKnown(&csr)
		w.requests = append(w.requests, csr)
		return problems
	case "machine.openshift.io/Machine", "cluster.x-k8s.io/Machine":
		return w.machine(doc)
	case v1alpha1.GroupVersion.Group + "/" + v1alpha1.KindMachineAttestation:
		var rec v1alpha1.MachineAttestation
		if problems := doc.DecodeKnown(&rec); problems != nil {
			return problems
		}
		if rec.Spec.Quarantined {
			w.quarantines = append(w.quarantines, rec)
		}
		if rec.Status.MachineUID != "" {
			w.records = append(w.records, rec)
		}
		if rec.Spec.Pool != "" && rec.Spec.MachineRef == nil {
			return w.machine(doc)
		}
	case "v1/Node":
		var node corev1.Node
		problems := doc.DecodeKnown(&node)
		w.nodes = append(w.nodes, node.Name)
		return problems
	case "v1/ConfigMap":
		var cm corev1.ConfigMap
		problems := doc.DecodeKnown(&cm)
		w.configMaps[cm.Namespace+"/"+cm.Name] = cm.Data
		return problems
	case "config.openshift.io/Network":
		var network struct {
			Status struct {
				NetworkType string `json:"networkType"`
			} `json:"status"`
		}
		problems := doc.DecodeKnown(&network)
		w.network = network.Status.NetworkType
		return problems
	case "network.openshift.io/HostSubnet":
		var subnet struct {
			Metadata struct {
				Name string `json:"name"`
			} `json:"metadata"`
			EgressIPs   []string `json:"egressIPs"`
			EgressCIDRs []string `json:"egressCIDRs"`
		}
		problems := doc.DecodeKnown(&subnet)
		w.egress[subnet.Metadata.Name] = &approver.Egress{IPs: subnet.EgressIPs, CIDRs: subnet.EgressCIDRs}
		return problems
	}
	return nil
}

func (w *fileWorld) machine(doc manifest.Document) []manifest.Problem {
	object := map[string]any{}
	if problems := doc.DecodeKnown(&object); problems != nil {
		return problems
	}
	m, err := approver.MachineFromObject(object)
	if err != nil {
		return []manifest.Problem{doc.Problem("", err.Error(), "a Machine as 'oc get machine -o yaml' writes it")}
	}
	w.machines = append(w.machines, *m)
	return nil
}

// Node implements [approver.World], as the following do.
func (w *fileWorld) Node(_ context.Context, name string) (bool, error) {
	return slices.Contains(w.nodes, name), nil
}

// MachinesByInternalDNS are all: the decision takes those that fit.
func (w *fileWorld) MachinesByInternalDNS(context.Context, string) ([]approver.Machine, error) {
	return w.machines, nil
}

// MachinesByNode are all, too.
func (w *fileWorld) MachinesByNode(context.Context, string) ([]approver.Machine, error) {
	return w.machines, nil
}

// RecordByCredential looks through the records.
func (w *fileWorld) RecordByCredential(_ context.Context, id string) (*v1alpha1.MachineAttestation, error) {
	for i := range w.records {
		if slices.ContainsFunc(w.records[i].Status.Credentials, func(c v1alpha1.CredentialStatus) bool { return c.ID == id }) {
			return &w.records[i], nil
		}
	}
	return nil, nil
}

// RecordByMachine looks through the records.
func (w *fileWorld) RecordByMachine(_ context.Context, uid string) (*v1alpha1.MachineAttestation, error) {
	for i := range w.records {
		if w.records[i].Status.MachineUID == uid {
			return &w.records[i], nil
		}
	}
	return nil, nil
}

// Quarantines are in the files, too.
func (w *fileWorld) Quarantines(context.Context, []string) ([]v1alpha1.MachineAttestation, error) {
	return w.quarantines, nil
}

// ServingCertificate is that of the flag.
func (w *fileWorld) ServingCertificate(context.Context, string) (*approver.Presented, error) {
	if w.certificate == nil {
		return nil, errors.New("none was given with --serving-certificate")
	}
	block, _ := pem.Decode(w.certificate)
	if block == nil || block.Type != "CERTIFICATE" {
		return nil, errors.New("the file of --serving-certificate has no PEM certificate")
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("the file of --serving-certificate: %w", err)
	}
	text := w.authority
	if text == nil {
		text = []byte(w.configMaps[w.kubeletCA]["ca-bundle.crt"])
	}
	p := &approver.Presented{Certificate: cert}
	if roots := x509.NewCertPool(); roots.AppendCertsFromPEM(text) {
		p.Roots = roots
	}
	return p, nil
}

// Egress is the HostSubnet's.
func (w *fileWorld) Egress(_ context.Context, node string) (*approver.Egress, error) {
	if w.network != "OpenShiftSDN" {
		return nil, nil
	}
	if e := w.egress[node]; e != nil {
		return e, nil
	}
	return &approver.Egress{}, nil
}

// Disabled is what the ConfigMap says.
func (w *fileWorld) Disabled(context.Context) (bool, error) {
	var flow struct {
		NodeClientCert struct {
			Disabled bool `json:"disabled"`
		} `json:"nodeClientCert"`
	}
	if err := yaml.Unmarshal([]byte(w.configMaps[w.configMap]["config.yaml"]), &flow); err != nil {
		if !w.attestation {
			return false, nil // as the stock approver takes it
		}
		return false, fmt.Errorf("ConfigMap %s: %w", w.configMap, err)
	}
	return flow.NodeClientCert.Disabled, nil
}

// MachineOf is the one with the UID of the record.
func (w *fileWorld) MachineOf(_ context.Context, rec *v1alpha1.MachineAttestation) (*approver.Machine, error) {
	for i := range w.machines {
		if w.machines[i].UID != "" && w.machines[i].UID == rec.Status.MachineUID {
			return &w.machines[i], nil
		}
	}
	return nil, nil
}

// Newer are in the files, too.
func (w *fileWorld) Newer(ctx context.Context, r *approver.Request, uid string) (newer []*approver.Request, _ error) {
	for i := range w.requests {
		other := approver.FromCSR(&w.requests[i])
		if rec, err := w.RecordByCredential(ctx, other.CredentialID); err == nil && rec != nil && rec.Status.MachineUID == uid && after(other, r) {
			newer = append(newer, other)
		}
	}
	slices.SortFunc(newer, func(a, b *approver.Request) int { return b.Created.Compare(a.Created) })
	return newer, nil
}

// after is whether a was made after b.
func after(a, b *approver.Request) bool {
	return a.Created.After(b.Created) || a.Created.Equal(b.Created) && a.Name > b.Name
}

// Pinned are those of the files with the key of the record's certificate.
func (w *fileWorld) Pinned(_ context.Context, rec *v1alpha1.MachineAttestation) (all []*approver.Request, _ error) {
	for i := range w.requests {
		if r := approver.FromCSR(&w.requests[i]); rec.Status.Certificate != nil && r.Kind == approver.Client && r.PublicKeySHA256 == rec.Status.Certificate.PublicKeySHA256 {
			all = append(all, r)
		}
	}
	return all, nil
}

// Load counts what is in the files.
func (w *fileWorld) Load(ctx context.Context, r *approver.Request, uid string) (approver.Load, error) {
	l := approver.Load{Machines: len(w.machines), Nodes: len(w.nodes)}
	for i := range w.requests {
		if from, until, ok := w.rules.Pending(&w.requests[i]); ok && !w.attestation && w.at.After(from) && w.at.Before(until) {
			l.Pending++
		}
		other := approver.FromCSR(&w.requests[i])
		if other.Kind == "" || other.Decided || w.at.Sub(other.Created) > approver.Window {
			continue
		}
		own := ""
		if rec, err := w.RecordByCredential(ctx, other.CredentialID); err == nil && rec != nil {
			own = rec.Status.MachineUID
		}
		if w.attestation && own == "" {
			l.Pending++
		}
		if (uid != "" && own == uid || uid == "" && other.Username == r.Username) && !after(r, other) {
			l.Own++
		}
	}
	return l, nil
}
