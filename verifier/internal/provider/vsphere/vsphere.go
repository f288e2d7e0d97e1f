// SPDX-License-Identifier: Apache-2.0

// Package vsphere queries vCenters for the endorsement keys of virtual TPMs.
//
// vSphere signs nothing that a machine could present. But a virtual machine's TPM is a device in its
// vCenter, and the device lists its EK certificates. So the EK is compared with the vCenter's answer.
// The certificates' own signatures do not matter, because an organization may have replaced them.
//
// A machine is found by its BIOS UUID, because OpenShift's machine controller writes that into
// spec.providerID (vsphere://, lower case). It is not necessarily unique: a clone may keep it. If two
// virtual machines have it, in one vCenter or in two, none is endorsed. So every vCenter is queried
// each time, because the machine in one vCenter may have a clone in another.
//
// The checks are, in this order:
//
//   - the provider ID is vSphere's (tpm2.ErrNotMine);
//   - all vCenters answered (ProviderUnavailable);
//   - exactly one virtual machine has the UUID (InstanceNotFound for none, MachineAmbiguous for more),
//     and its configuration repeats it;
//   - it has one virtual TPM (EKUntrusted), for which the vCenter lists at least one certificate that
//     can be parsed.
//
// Any other failure is ProviderUnavailable. A clone causes only a temporary denial: an attacker who can
// create a clone must not be able to exclude the legitimate machine permanently.
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

// keep is the time for which an answer is cached. A virtual TPM that is removed or replaced is detected
// that much later.
const keep = 15 * time.Second

// maxCertificates is the maximum number of certificates of one device that are read. A virtual TPM has
// two.
const maxCertificates = 16

var uuid = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// Directory implements [tpm2.Directory] for vCenters.
type Directory struct {
	caller  *outbound.Caller
	servers []*server
}

// New returns a directory. It makes no call.
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

// Close ends the sessions. A vCenter allows each user a limited number.
func (d *Directory) Close(ctx context.Context) error {
	var errs []error
	for _, s := range d.servers {
		errs = append(errs, s.close(ctx))
	}
	return errors.Join(errs...)
}

// EndorsementKeys implements [tpm2.Directory]. It queries all vCenters.
func (d *Directory) EndorsementKeys(ctx context.Context, providerID string, _ *tpm2.EK) (tpm2.ProviderKeys, error) {
	id, ok := strings.CutPrefix(providerID, prefix)
	if !ok {
		return tpm2.ProviderKeys{}, tpm2.ErrNotMine
	}
	if !uuid.MatchString(id) {
		return tpm2.ProviderKeys{}, reason.Deny(reason.InstanceNotFound,
			"%.128q does not name a virtual machine by a UUID in lower case", providerID)
	}
	return outbound.Ask(ctx, d.caller, "virtual-tpm", id, keep, func(ctx context.Context) (tpm2.ProviderKeys, error) {
		return d.ask(ctx, id)
	})
}

func (d *Directory) ask(ctx context.Context, id string) (tpm2.ProviderKeys, error) {
	var (
		unknown []error           // of vCenters that did not answer
		keys    tpm2.ProviderKeys // of the vCenter that has the machine
		denial  error             // or why there are none
		having  []string          // the vCenters that have such a machine
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
		return tpm2.ProviderKeys{}, reason.Deny(reason.MachineAmbiguous,
			"the vCenters %q have several virtual machines with BIOS UUID %s: clones",
			having, id)
	case len(having) == 0:
		return tpm2.ProviderKeys{}, reason.Deny(reason.InstanceNotFound,
			"no vCenter has a virtual machine with BIOS UUID %s", id)
	}
	return keys, denial
}

// virtualTPM returns a vCenter's answer about one machine. An error that is not a denial means that the
// answer is unknown.
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
		return none, reason.Deny(reason.InstanceNotFound, "the virtual machine with BIOS UUID %s was just deleted", id)
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
		return none, fmt.Errorf("the vCenter lists no valid EK certificate of the virtual TPM of %s", id)
	}
	return keys, nil
}

// certifiedKeys returns the SubjectPublicKeyInfos of the certificates that can be parsed. The API's
// type is xsd:base64Binary, which govmomi does not decode, so it is decoded here. Plain DER is accepted
// as well.
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
