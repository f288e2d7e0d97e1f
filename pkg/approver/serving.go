package approver

import (
	"crypto/x509"
	"net"
	"slices"
	"strings"

	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// serving checks a request for a serving certificate. Those marked * are made with
// attestation alone.
//
//   - limit: not too many of the same node wait, or without attestation of all
//     (CSRLimit)
//   - identity: a node made it, in the groups that a node is in (CSRRequester)
//   - content: O is system:nodes alone, CN the requester, at least one name and
//     neither email addresses nor URIs, the usages a server's (CSRContent)
//   - quarantine*: no administrator stopped the node's machine (Quarantined)
//
// and then whether its names and addresses are the node's. One of three ways is
// enough; else it is tried again, as a Machine's addresses may be late (MachineNotFound,
// MachineAmbiguous, CSRAddress):
//
//   - machine: every one of them is among the addresses of the Machine that has this
//     Node
//   - renewal: the kubelet presents a certificate, valid and signed by the kubelets'
//     authority, for the same name, and with exactly the same names and addresses
//   - egress: only where the network is OpenShiftSDN: as renewal, where each further
//     address is one that the network gives the node
//
// and at last enrollments*: no other object quarantines the node's machine (Quarantined).
func (x *run) serving() error {
	for _, step := range []func() error{x.limit, x.identity, x.servingContent} {
		if err := step(); err != nil {
			return err
		}
	}
	found, err := x.w.MachinesByNode(x.ctx, x.Node)
	if err != nil {
		return x.check("machine", unread(err, "reading the Machines of Node %.253q", x.Node), "")
	}
	found = slices.DeleteFunc(slices.Clone(found), func(m Machine) bool { return !m.is(x.Node) })
	if err := x.stopped(found); err != nil {
		return err
	}
	if err := x.addresses(found); err != nil || !x.c.Attestation {
		return err
	}
	return x.stoppedBy(found, x.records...)
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
		err = reason.Deny(reason.CSRContent, "the common name is %.253q, and %.253q made the request", csr.Subject.CommonName,
			x.r.Username)
	case len(csr.DNSNames)+len(csr.IPAddresses) == 0:
		err = reason.Deny(reason.CSRContent,
			"the request has no name and no address: nobody could connect by such a certificate")
	case slices.Contains(csr.DNSNames, ""):
		err = reason.Deny(reason.CSRContent, "the request has an empty name")
	}
	return x.check("content", err, "for %s", strings.Join(sans(csr.DNSNames, csr.IPAddresses), ", "))
}

// stopped reads the records of the node's machine; what joined before there were
// records has none.
func (x *run) stopped(found []Machine) error {
	if !x.c.Attestation {
		return nil
	}
	for i := range found {
		rec, err := x.w.RecordByMachine(x.ctx, found[i].UID)
		switch {
		case err != nil:
			err = unread(err, "reading the record of %s", &found[i])
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

// addresses is the three ways. The kubelet is asked last: one that does not answer
// takes its time.
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
	refused := x.check("machine", err, "all names are those of %s", m)
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
	} else if x.check("renewal", x.renewal(now, nil), "the same names as in the certificate that the kubelet has") == nil {
		return nil
	}
	egress, err := x.w.Egress(x.ctx, x.Node)
	switch {
	case err != nil:
		return x.check("egress", unread(err, "reading what the network gives the node"), "")
	case egress == nil:
		x.skip("egress", "the network is not OpenShiftSDN")
		return refused
	case now == nil:
		x.skip("egress", "there is no certificate to start from")
		return refused
	}
	return x.check("egress", x.renewal(now, egress), "the further addresses are egress addresses of the node")
}

// renewal compares with the certificate that the kubelet has. With egress the
// addresses may be more, and only these.
func (x *run) renewal(have *Presented, egress *Egress) error {
	mismatch := func(format string, a ...any) error { return reason.Deny(reason.CSRAddress, format, a...) }
	cert, csr := have.Certificate, x.r.CSR
	if have.Roots == nil {
		return mismatch("the kubelets' authorities are not known")
	}
	if _, err := cert.Verify(x509.VerifyOptions{Roots: have.Roots, CurrentTime: x.now}); err != nil {
		return reason.Wrap(reason.CSRAddress, err, "the certificate that the kubelet has")
	}
	switch {
	case cert.Subject.CommonName != nodePrefix+x.Node:
		return mismatch("the kubelet has a certificate for %.253q", cert.Subject.CommonName)
	case len(cert.EmailAddresses) > 0 || len(cert.URIs) > 0 || !sameNames(cert.DNSNames, csr.DNSNames):
		return mismatch("the names asked for (%.10q) are not those of the certificate that the kubelet has (%.10q)",
			csr.DNSNames, cert.DNSNames)
	}
	if egress == nil {
		if !sameNames(sans(nil, cert.IPAddresses), sans(nil, csr.IPAddresses)) {
			return mismatch("the addresses asked for (%.10q) are not those of the certificate that the kubelet has (%.10q)",
				csr.IPAddresses, cert.IPAddresses)
		}
		return nil
	}
	given, err := egress.addresses()
	if err != nil {
		return reason.Wrap(reason.CSRAddress, err, "what the network gives the node")
	}
	for _, ip := range csr.IPAddresses {
		if !slices.ContainsFunc(cert.IPAddresses, ip.Equal) && !given(ip) {
			return mismatch("%s is neither in the certificate that the kubelet has nor an egress address of the node", ip)
		}
	}
	return nil
}

// addresses returns which addresses the network gives the node. One range that cannot
// be read makes the whole HostSubnet useless, as it does for the stock approver.
func (e *Egress) addresses() (given func(net.IP) bool, err error) {
	ranges := make([]*net.IPNet, len(e.CIDRs))
	for i, s := range e.CIDRs {
		if _, ranges[i], err = net.ParseCIDR(s); err != nil {
			return nil, err
		}
	}
	return func(ip net.IP) bool {
		return slices.ContainsFunc(e.IPs, func(s string) bool {
			have := net.ParseIP(s)
			return have != nil && have.Equal(ip)
		}) || slices.ContainsFunc(ranges, func(r *net.IPNet) bool { return r.Contains(ip) })
	}, nil
}

// within finds every name and address of the request among those of the Machine.
func (x *run) within(m *Machine) error {
	for _, name := range x.r.CSR.DNSNames {
		if !m.hasName(name) {
			return reason.Deny(reason.CSRAddress, "%.253q is not a name of %s %s (%.20q)", name, m.Kind, m, m.names())
		}
	}
	for _, ip := range x.r.CSR.IPAddresses {
		if !m.hasAddress(ip) {
			return reason.Deny(reason.CSRAddress, "%s is not an address of %s %s (%.20q)", ip, m.Kind, m, m.addresses())
		}
	}
	return nil
}

// sans are names and addresses as text.
func sans(names []string, addresses []net.IP) []string {
	all := slices.Clone(names)
	for _, ip := range addresses {
		all = append(all, ip.String())
	}
	return all
}

// sameNames compares without regard to order, with regard to how often.
func sameNames(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}
