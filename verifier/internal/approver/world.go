package approver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	kerrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/approver"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/store"
)

// callTimeout is how long one call of the API may take.
const callTimeout = 5 * time.Second

// WorldOptions say where a [World] looks.
type WorldOptions struct {
	Client  kubernetes.Interface
	Dynamic dynamic.Interface
	// Config must be complete, as the configuration has it.
	Config     config.Approver
	Credential *config.Credential // nil where machines have no credentials of their own
	// Namespaces of Machines and of the MachineAttestations that stand in for one;
	// "*" is every namespace.
	Namespaces []string
	Namespace  string // the verifier's own, one of them
	Machines   Directory
	Records    Reader

	Timeout time.Duration // of one call; 0 is 5 seconds
	Now     func() time.Time
	// Dial reaches a kubelet; nil: any address but those of this very host.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)

	waiting     *waiting
	quarantines *quarantines
}

// World answers by reading the API as it is now. Only where to look comes from
// what was watched: so a decision costs the same in a cluster of any size, and an
// approval never rests on what is out of date. Quarantines are the exception: each
// approval reads all MachineAttestations. It implements [approver.World].
type World struct{ o WorldOptions }

var _ approver.World = (*World)(nil)

// NewWorld makes no call yet.
func NewWorld(o WorldOptions) *World {
	o.Timeout = cmp.Or(o.Timeout, callTimeout)
	o.Namespaces = slices.Compact(slices.Sorted(slices.Values(o.Namespaces)))
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Dial == nil {
		o.Dial = dialKubelet
	}
	if o.waiting == nil {
		o.waiting = newWaiting(o.Machines, Rules(o.Config, o.Credential))
	}
	o.quarantines = new(quarantines)
	return &World{o}
}

// Node implements [approver.World].
func (w *World) Node(ctx context.Context, name string) (bool, error) {
	if len(validation.IsDNS1123Subdomain(name)) > 0 {
		return false, nil // no object is called so
	}
	ctx, cancel := context.WithTimeout(ctx, w.o.Timeout)
	defer cancel()
	_, err := w.o.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if kerrors.IsNotFound(err) {
		return false, nil
	}
	return err == nil, wrap(err, "read Node %s", name)
}

// RecordByCredential implements [approver.World].
func (w *World) RecordByCredential(ctx context.Context, id string) (*v1alpha1.MachineAttestation, error) {
	uid, ok := w.o.Machines.ByCredential(id)
	if !ok {
		return nil, nil
	}
	return w.record(ctx, uid)
}

// RecordByMachine implements [approver.World].
func (w *World) RecordByMachine(ctx context.Context, uid string) (*v1alpha1.MachineAttestation, error) {
	return w.record(ctx, uid)
}

func (w *World) record(ctx context.Context, uid string) (*v1alpha1.MachineAttestation, error) {
	rec, err := w.o.Records.Record(ctx, uid)
	var d *reason.Denial
	if errors.As(err, &d) && d.Code == reason.MachineNotFound {
		return nil, nil // and no record without its Machine
	}
	return rec, err
}

// ServingCertificate implements [approver.World]. What it returns was verified.
func (w *World) ServingCertificate(ctx context.Context, node string) (*approver.Presented, error) {
	if len(validation.IsDNS1123Subdomain(node)) > 0 {
		return nil, fmt.Errorf("%.80q is no Node's name", node)
	}
	call, cancel := context.WithTimeout(ctx, w.o.Timeout)
	defer cancel()
	n, err := w.o.Client.CoreV1().Nodes().Get(call, node, metav1.GetOptions{})
	if err != nil {
		return nil, wrap(err, "read Node %s", node)
	}
	return w.served(ctx, n)
}

var (
	networks    = schema.GroupVersionResource{Group: "config.openshift.io", Version: "v1", Resource: "networks"}
	hostSubnets = schema.GroupVersionResource{Group: "network.openshift.io", Version: "v1", Resource: "hostsubnets"}
)

// Egress implements [approver.World].
func (w *World) Egress(ctx context.Context, node string) (*approver.Egress, error) {
	network, err := w.get(ctx, networks, "", "cluster")
	if err != nil || network == nil {
		return nil, wrap(err, "read the cluster's Network")
	}
	if kind, _, _ := unstructured.NestedString(network.Object, "status", "networkType"); kind != "OpenShiftSDN" {
		return nil, nil
	}
	if len(validation.IsDNS1123Subdomain(node)) > 0 {
		return nil, nil
	}
	subnet, err := w.get(ctx, hostSubnets, "", node)
	if err != nil || subnet == nil {
		return nil, wrap(err, "read HostSubnet %s", node)
	}
	e := new(approver.Egress)
	if e.IPs, _, err = unstructured.NestedStringSlice(subnet.Object, "egressIPs"); err == nil {
		e.CIDRs, _, err = unstructured.NestedStringSlice(subnet.Object, "egressCIDRs")
	}
	return e, wrap(err, "HostSubnet %s", node)
}

// Disabled implements [approver.World]. With attestation, a switch that cannot be
// read counts as off for the time being; without, it counts as on, as it does for
// the stock approver.
func (w *World) Disabled(ctx context.Context) (bool, error) {
	off, err := w.disabled(ctx, w.o.Config.ConfigMap)
	if err != nil && w.o.Config.Attestation == config.AttestationOff {
		return false, nil
	}
	return off, err
}

// Load implements [approver.World].
func (w *World) Load(_ context.Context, r *approver.Request, uid string) (approver.Load, error) {
	var l approver.Load
	l.Machines, l.Nodes = w.o.Machines.Counts()
	l.Pending, l.Own = w.o.waiting.load(r, uid, w.o.Now())
	return l, nil
}

func wrap(err error, format string, a ...any) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf(format+": %w", append(a, err)...)
}

// Directory says where Machines and records are. It may be a moment behind: what it
// names is read anew.
type Directory interface {
	// ByInternalDNS and ByNode are Machines with that name among their InternalDNS
	// addresses, and with that Node in their nodeRef.
	ByInternalDNS(name string) []machine.Ref
	ByNode(node string) []machine.Ref
	// ByCredential is the Machine on whose record the bootstrap credential is.
	ByCredential(id string) (uid string, ok bool)
	// Counts are how many Machines and Nodes there are.
	Counts() (machines, nodes int)
}

// Reader reads the record of a Machine as it is now; nil if there is none.
type Reader interface {
	Record(ctx context.Context, uid string) (*v1alpha1.MachineAttestation, error)
}

// Records also changes them; see cluster.Records.
type Records interface {
	Reader
	Update(ctx context.Context, uid string, change store.Change) error
}
