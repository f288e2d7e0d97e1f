// SPDX-License-Identifier: Apache-2.0

package approver

import (
	"crypto/x509"
	"net"
	"slices"
	"strings"

	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// serving checks a request for a serving certificate. Checks marked * are made only with
// attestation.
//
//   - limit: not too many requests of the same node are pending, or of all nodes without
//     attestation (CSRLimit)
//   - identity: a node made it, in the groups of a node (CSRRequester)
//   - content: O is only system:nodes, CN is the requester, there is at least one name and
//     neither email addresses nor URIs, and the usages are those of a server (CSRContent)
//   - quarantine*: no record of the node's machine is quarantined (Quarantined)
//
// Then it checks that the names and addresses are the node's. One of three checks must
// pass. Otherwise the request is decided again later, because a Machine's addresses may
// be late (MachineNotFound, MachineAmbiguous, CSRAddress):
//
//   - machine: all of them are addresses of the Machine that has this Node
//   - renewal: the kubelet presents a valid certificate, signed by the kubelets'
//     authority, for the same node name and with exactly the same names and addresses
//   - egress: only with OpenShiftSDN: as renewal, but each additional address must be an
//     egress address of the node
//
// Finally enrollments*: no enrollment quarantines the node's machine (Quarantined).
func (x *run) serving() error {
	for _, step := range []func() error{x.limit, x.identity, x.servingContent} {
		if err := step(); err != nil {
			return err
		}
	}
	found, err := x.w.MachinesByNode(x.ctx, x.Node)
	if err != nil {
		return x.check("machine", unread(err, "read the Machines of Node %.253q", x.Node), "")
	}
	found = slices.DeleteFunc(slices.Clone(found), func(m Machine) bool { return !m.is(x.Node) })
	if err := x.recordsQuarantined(found); err != nil {
		return err
	}
	if err := x.addresses(found); err != nil || !x.c.Attestation {
		return err
	}
	return x.quarantinedBy(found, x.records...)
}

func (x *run) identity() error {
	r := x.r
	var err error
	switch {
	case !strings.HasPrefix(r.Username, nodePrefix) || r.Username == nodePrefix:
		err = reason.Deny(reason.CSRRequester, "%.253q is not a node", r.Username)
	case !slices.Contains(r.Groups, authenticated):
		err = reason.Deny(reason.CSRRequester, "%.253q is not in the group %s", r.Username, authenticated)
	}
	return x.check("identity", err, "%s", r.Username)
}

func (x *run) servingContent() error {
	csr := x.r.CSR
	err := x.subject()
	if err == nil {
		err = x.usages(servingUsages)
	}
	switch {
	case err != nil:
	case csr.Subject.CommonName != x.r.Username:
		err = reason.Deny(reason.CSRContent, "the common name is %.253q, but %.253q made the request", csr.Subject.CommonName,
			x.r.Username)
	case len(csr.DNSNames)+len(csr.IPAddresses) == 0:
		err = reason.Deny(reason.CSRContent,
			"the request has neither names nor addresses")
	case slices.Contains(csr.DNSNames, ""):
		err = reason.Deny(reason.CSRContent, "the request has an empty name")
	}
	return x.check("content", err, "for %s", strings.Join(sans(csr.DNSNames, csr.IPAddresses), ", "))
}

// recordsQuarantined checks the records of the node's machine for a quarantine. A machine that
// joined before the installation of the verifier has no record.
func (x *run) recordsQuarantined(found []Machine) error {
	if !x.c.Attestation {
		return nil
	}
	for i := range found {
		rec, err := x.w.RecordByMachine(x.ctx, found[i].UID)
		switch {
		case err != nil:
			err = unread(err, "read the record of %s", &found[i])
		case rec != nil && (rec.Spec.Quarantined || rec.Status.Quarantined):
			err = reason.Deny(reason.Quarantined, "%s", &found[i])
		}
		if err != nil {
			return x.check("quarantine", err, "")
		}
		x.records = append(x.records, rec)
	}
	return x.check("quarantine", nil, "no")
}

// addresses makes the checks machine, renewal and egress. It connects to the kubelet
// last, because that can take long.
func (x *run) addresses(found []Machine) error {
	m, err := one(found)
	x.Machine = m
	switch {
	case err != nil:
	case m == nil:
		err = reason.Deny(reason.MachineNotFound, "no Machine has the Node %q", x.Node)
	default:
		err = x.within(m)
	}
	refused := x.check("machine", err, "all names and addresses are those of %s", m)
	if refused == nil {
		return nil
	}
	now, err := x.w.ServingCertificate(x.ctx, x.Node)
	if now == nil || now.Certificate == nil {
		now = nil
		why := "the kubelet presents no certificate"
		if err != nil {
			why += ": " + err.Error()
		}
		x.skip("renewal", "%.500s", why)
	} else if x.check("renewal", x.renewal(now, nil),
		"the same names and addresses as in the kubelet's certificate") == nil {
		return nil
	}
	egress, err := x.w.Egress(x.ctx, x.Node)
	switch {
	case err != nil:
		return x.check("egress", unread(err, "read the egress addresses of the node"), "")
	case egress == nil:
		x.skip("egress", "the network is not OpenShiftSDN")
		return refused
	case now == nil:
		x.skip("egress", "the kubelet presents no certificate")
		return refused
	}
	return x.check("egress", x.renewal(now, egress), "the additional addresses are egress addresses of the node")
}

// renewal compares the request with the kubelet's certificate. With egress, the request
// may have additional addresses from egress.
func (x *run) renewal(have *Presented, egress *Egress) error {
	mismatch := func(format string, a ...any) error { return reason.Deny(reason.CSRAddress, format, a...) }
	cert, csr := have.Certificate, x.r.CSR
	if have.Roots == nil {
		return mismatch("the kubelets' certificate authorities are unknown")
	}
	if _, err := cert.Verify(x509.VerifyOptions{Roots: have.Roots, CurrentTime: x.now}); err != nil {
		return reason.Wrap(reason.CSRAddress, err, "verify the kubelet's certificate")
	}
	switch {
	case cert.Subject.CommonName != nodePrefix+x.Node:
		return mismatch("the kubelet's certificate is for %.253q", cert.Subject.CommonName)
	case len(cert.EmailAddresses) > 0 || len(cert.URIs) > 0 || !sameNames(cert.DNSNames, csr.DNSNames):
		return mismatch("the requested names (%.253q) differ from those of the kubelet's certificate (%.253q)",
			few(csr.DNSNames), few(cert.DNSNames))
	}
	if egress == nil {
		if !sameNames(sans(nil, cert.IPAddresses), sans(nil, csr.IPAddresses)) {
			return mismatch("the requested addresses (%q) differ from those of the kubelet's certificate (%q)",
				few(csr.IPAddresses), few(cert.IPAddresses))
		}
		return nil
	}
	given, err := egress.addresses()
	if err != nil {
		return reason.Wrap(reason.CSRAddress, err, "parse the egress addresses of the node")
	}
	for _, ip := range csr.IPAddresses {
		if !slices.ContainsFunc(cert.IPAddresses, ip.Equal) && !given(ip) {
			return mismatch("%s is neither in the kubelet's certificate nor an egress address of the node", ip)
		}
	}
	return nil
}

// addresses returns a function that reports whether an address is an egress address of
// the node. Like the stock approver, it rejects a HostSubnet with an invalid range.
func (e *Egress) addresses() (given func(net.IP) bool, err error) {
	ranges := make([]*net.IPNet, len(e.CIDRs))
	for i, s := range e.CIDRs {
		if _, ranges[i], err = net.ParseCIDR(s); err != nil {
			return nil, err
		}
	}
	return func(ip net.IP) bool {
		return slices.ContainsFunc(e.IPs, func(s string) bool {
			return net.ParseIP(s).Equal(ip)
		}) || slices.ContainsFunc(ranges, func(r *net.IPNet) bool { return r.Contains(ip) })
	}, nil
}

// within checks that the Machine has every name and address of the request.
func (x *run) within(m *Machine) error {
	for _, name := range x.r.CSR.DNSNames {
		if !m.hasName(name) {
			return reason.Deny(reason.CSRAddress, "%.253q is not a name of %s %s (%.253q)", name, m.Kind, m, few(m.names()))
		}
	}
	for _, ip := range x.r.CSR.IPAddresses {
		if !m.hasAddress(ip) {
			return reason.Deny(reason.CSRAddress, "%s is not an address of %s %s (%q)", ip, m.Kind, m, few(m.addresses()))
		}
	}
	return nil
}

// sans returns names and addresses as text.
func sans(names []string, addresses []net.IP) []string {
	all := slices.Clone(names)
	for _, ip := range addresses {
		all = append(all, ip.String())
	}
	return all
}

// sameNames compares two lists regardless of order, with duplicates.
func sameNames(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}
