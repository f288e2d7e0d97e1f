package render

// Secret is something in a config that not anyone may have.
type Secret struct {
	// Path is the file's; empty for what is in no file.
	Path string
	// Where it is, for people: "file /etc/shadow", "unit x.service", ...
	Where string
	// What it is: "a private key". Never the secret itself.
	What string
}

// Secrets are what a search of the MachineConfig finds. It is searched once.
func (m *MachineConfig) Secrets() []Secret {
	m.once.Do(func() {})
	return m.secrets
}
