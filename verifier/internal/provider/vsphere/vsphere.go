// Package vsphere asks vCenters for the endorsement keys of virtual TPMs.
//
// vSphere signs nothing that a machine could show. But a virtual machine's TPM is
// a device that its vCenter knows, and the device lists its EK certificates. So
// the EK is compared with what the vCenter says, and the certificates' own
// signatures do not matter: an organisation may have replaced them.
//
// A machine is found by its BIOS UUID, because OpenShift's machine controller
// writes that one into spec.providerID (vsphere://, lower case). It is not
// unique by nature: a clone may keep it. Where two virtual machines have it, of one
// vCenter or of two, none is endorsed. So every vCenter is asked each time: that one
// has the machine does not say that another has no clone of it.
//
// Checks, in this order:
//
//   - the provider ID is vSphere's (tpm2.ErrNotMine);
//   - all vCenters could be asked (ProviderUnavailable);
//   - exactly one virtual machine has the UUID (InstanceNotFound for none,
//     MachineAmbiguous for more), and its configuration repeats it;
//   - it has one virtual TPM (EKUntrusted), of which the vCenter lists at least one
//     certificate that can be read.
//
// Whatever cannot be found out is ProviderUnavailable. That there is a clone is a no
// for now: whoever can make one must not be able to turn the rightful machine away
// for good.
package vsphere

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/vmware/govmomi/fault"
	"github.com/vmware/govmomi/object"
	"github.com/vmware/govmomi/property"
	"github.com/vmware/govmomi/vim25"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/types"

	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/outbound"
)

const prefix = "vsphere://"

// keep is how long an answer counts. A virtual TPM that is taken away or put in
// the place of another is noticed that much later.
const keep = 15 * time.Second

// maxCertificates bounds what is read of one device; a virtual TPM has two.
const maxCertificates = 16

var uuid = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// Directory implements [tpm2.Directory] for vCenters.
type Directory struct {
	caller  *outbound.Caller
	servers []*server
}

// New makes a directory; nothing is asked yet.
func New(c config.VSphere, o outbound.Options) *Directory {
	if o.Now == nil {
		o.Now = time.Now
	}
	d := &Directory{caller: outbound.New("vsphere", o)}
	for _, s := range c.Servers {
		d.servers = append(d.servers, &server{config: s, now: o.Now})
	}
	return d
}

// Close ends the sessions: a vCenter allows each user only so many.
func (d *Directory) Close(ctx context.Context) error {
	var errs []error
	for _, s := range d.servers {
		errs = append(errs, s.close(ctx))
	}
	return errors.Join(errs...)
}

// EndorsementKeys implements [tpm2.Directory]. All vCenters are asked.
func (d *Directory) EndorsementKeys(ctx context.Context, providerID string, _ *tpm2.EK) (tpm2.ProviderKeys, error) {
	id, ok := strings.CutPrefix(providerID, prefix)
	if !ok {
		return tpm2.ProviderKeys{}, tpm2.ErrNotMine
	}
	if !uuid.MatchString(id) {
		return tpm2.ProviderKeys{}, reason.Deny(reason.InstanceNotFound,
			"%.128q names no virtual machine by a UUID in small letters", providerID)
	}
	return outbound.Ask(ctx, d.caller, "virtual-tpm", id, keep, func(ctx context.Context) (tpm2.ProviderKeys, error) {
		return d.ask(ctx, id)
	})
}

func (d *Directory) ask(ctx context.Context, id string) (tpm2.ProviderKeys, error) {
	var (
		unknown []error           // of vCenters that could not be asked
		keys    tpm2.ProviderKeys // of the vCenter that has the machine,
		denial  error             // or why they are none
		having  []string          // vCenters that have one
	)
	for _, s := range d.servers {
		var found tpm2.ProviderKeys
		err := s.do(ctx, func(c *vim25.Client) (err error) {
			found, err = virtualTPM(ctx, c, id)
			return err
		})
		var says *reason.Denial
		switch {
		case err != nil && !errors.As(err, &says):
			unknown = append(unknown, fmt.Errorf("%s: %w", s.config.URL, err))
		case err == nil || says.Code != reason.InstanceNotFound:
			keys, denial, having = found, err, append(having, s.config.URL)
		}
	}
	switch {
	case unknown != nil:
		return tpm2.ProviderKeys{}, errors.Join(unknown...)
	case len(having) > 1:
		return tpm2.ProviderKeys{}, reason.Deny(reason.MachineAmbiguous, "virtual machines of %q have BIOS UUID %s: clones",
			having, id)
	case len(having) == 0:
		return tpm2.ProviderKeys{}, reason.Deny(reason.InstanceNotFound,
			"no vCenter has a virtual machine with BIOS UUID %s", id)
	}
	return keys, denial
}

// virtualTPM is what a vCenter says of one machine. An error that is no denial is
// a failure to find out.
func virtualTPM(ctx context.Context, c *vim25.Client, id string) (tpm2.ProviderKeys, error) {
	var none tpm2.ProviderKeys
	byBIOS := false
	found, err := object.NewSearchIndex(c).FindAllByUuid(ctx, nil, id, true, &byBIOS)
	switch {
	case err != nil:
		return none, err
	case len(found) == 0:
		return none, reason.Deny(reason.InstanceNotFound, "no virtual machine with BIOS UUID %s", id)
	case len(found) > 1:
		return none, reason.Deny(reason.MachineAmbiguous, "%d virtual machines have BIOS UUID %s: clones", len(found), id)
	}
	var vm mo.VirtualMachine
	err = property.DefaultCollector(c).RetrieveOne(ctx, found[0].Reference(),
		[]string{"config.uuid", "config.instanceUuid", "config.hardware.device"}, &vm)
	if fault.Is(err, &types.ManagedObjectNotFound{}) {
		return none, reason.Deny(reason.InstanceNotFound, "the virtual machine with BIOS UUID %s has just gone", id)
	}
	if err != nil {
		return none, err
	}
	if vm.Config == nil {
		return none, fmt.Errorf("the configuration of virtual machine %s cannot be read", id)
	}
	if !strings.EqualFold(vm.Config.Uuid, id) {
		return none, fmt.Errorf("the virtual machine found by BIOS UUID %s has %.64q", id, vm.Config.Uuid)
	}
	instance := strings.ToLower(vm.Config.InstanceUuid)
	if !uuid.MatchString(instance) {
		return none, fmt.Errorf("virtual machine %s has the instance UUID %.64q", id, vm.Config.InstanceUuid)
	}
	keys := tpm2.ProviderKeys{InstanceID: "vsphere:" + instance}
	devices := 0
	for _, device := range vm.Config.Hardware.Device {
		t, ok := device.(*types.VirtualTPM)
		if !ok {
			continue
		}
		devices++
		keys.SPKI = append(keys.SPKI, certifiedKeys(t.EndorsementKeyCertificate)...)
	}
	if devices != 1 {
		return none, reason.Deny(reason.EKUntrusted, "virtual machine %s has %d virtual TPMs", id, devices)
	}
	if len(keys.SPKI) == 0 {
		return none, fmt.Errorf("the vCenter lists no EK certificate that can be read of the virtual TPM of %s", id)
	}
	return keys, nil
}

// certifiedKeys are the SubjectPublicKeyInfos of the certificates that can be read.
// The API's type is xsd:base64Binary, which govmomi hands over as it stands on the
// wire, so it is decoded here; DER as such is taken, too.
func certifiedKeys(certificates [][]byte) [][]byte {
	var out [][]byte
	for _, raw := range certificates[:min(len(certificates), maxCertificates)] {
		if der, err := base64.StdEncoding.DecodeString(string(bytes.TrimSpace(raw))); err == nil {
			raw = der
		}
		if cert, err := x509.ParseCertificate(raw); err == nil {
			out = append(out, cert.RawSubjectPublicKeyInfo)
		}
	}
	return out
}
