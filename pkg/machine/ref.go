package machine

// Ref names a Machine of the API.
type Ref struct {
	APIVersion, Namespace, Name, UID string
}

// Ref is the Machine's own.
func (m *Machine) Ref() Ref { return Ref{m.APIVersion, m.Namespace, m.Name, m.UID} }

// String is "namespace/name".
func (r Ref) String() string { return r.Namespace + "/" + r.Name }
