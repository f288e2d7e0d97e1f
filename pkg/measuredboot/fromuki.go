// SPDX-License-Identifier: Apache-2.0

package measuredboot

import (
	"io"

	"github.com/mcs-attest/mcs-attest/pkg/eventlog"
	"github.com/mcs-attest/mcs-attest/pkg/measuredboot/uki"
)

// linux is the name of the kernel in a UKI, among the applications.
const linux = "linux"

// FromUKI computes the reference values of a unified kernel image of size bytes: PCR 11 before the
// cap, with and without the phase enter-initrd; the sections that determine it; and the
// Authenticode digests of the UKI and of its kernel.
func FromUKI(name string, r io.ReaderAt, size int64) (*ReferenceValues, error) {
	m, err := uki.Measure(r, size)
	if err != nil {
		return nil, err
	}
	refs := &ReferenceValues{
		APIVersion: APIVersion,
		Kind:       Kind,
		Metadata:   Metadata{Name: name},
		Stub:       "systemd-stub " + m.Stub,
	}
	component := func(name string, d uki.Digests) Component {
		return Component{Name: name, Digests: Digests{SHA256: d.SHA256, SHA384: d.SHA384}}
	}
	for _, s := range m.Sections {
		refs.Sections = append(refs.Sections, component(s.Name, s.Digests))
	}
	for _, phase := range []string{"", EnterInitrd} {
		v := PCRValue{Phase: phase}
		if v.SHA256, err = SectionsPCR11(eventlog.SHA256, refs.Sections, phase); err != nil {
			return nil, err
		}
		if v.SHA384, err = SectionsPCR11(eventlog.SHA384, refs.Sections, phase); err != nil {
			return nil, err
		}
		refs.PCR11 = append(refs.PCR11, v)
	}
	refs.Applications = append(refs.Applications, component("uki", m.Self))
	if m.Linux != nil {
		refs.Applications = append(refs.Applications, component(linux, *m.Linux))
	}
	return refs, nil
}
