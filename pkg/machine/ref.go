// SPDX-License-Identifier: Apache-2.0

package machine

// Ref identifies a Machine object.
type Ref struct {
	APIVersion, Namespace, Name, UID string
}

// Ref returns the reference to m.
func (m *Machine) Ref() Ref { return Ref{m.APIVersion, m.Namespace, m.Name, m.UID} }

// String returns "namespace/name".
func (r Ref) String() string { return r.Namespace + "/" + r.Name }
