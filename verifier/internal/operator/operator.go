// SPDX-License-Identifier: Apache-2.0

// Package operator does what an administrator's commands ask for, in one of two
// places: a standalone verifier's [Folder], or a [Cluster] that a kubeconfig
// leads to. Both read Machines and records and write MachineAttestations and
// keys; neither needs the verifier's process.
//
// What a command needs of a place is an interface of the command's own. Errors
// are for a person; one with a remedy is a [*hint.Error].
package operator

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/record"
	"github.com/mcs-attest/mcs-attest/verifier/internal/admin"
	"github.com/mcs-attest/mcs-attest/verifier/internal/audit"
	"github.com/mcs-attest/mcs-attest/verifier/internal/hint"
)

// MaxGrant is how far ahead a grant to attest again may end (rule 11 of
// docs/security-rules.md).
const MaxGrant = 24 * time.Hour

// DryRun says how far a write goes.
type DryRun string

// The dry runs, as kubectl has them.
const (
	DryRunNone   DryRun = "none"
	DryRunClient DryRun = "client" // nothing is sent
	DryRunServer DryRun = "server" // the API server checks and stores nothing
)

// Write says how something is written.
type Write struct {
	Replace bool // an enrollment of the same name
	DryRun  DryRun
}

// Written is what a command wrote, or would have.
type Written struct {
	// Where is a path, or kind and name of an object.
	Where string
	File  bool // Where is a path
	// Done is "created", "replaced", "changed", "unchanged" or "deleted".
	Done string
	// Object as it is now. Nil if it was deleted.
	Object *v1alpha1.MachineAttestation
}

// YAML is the object as an administrator would write it: the status is the verifier's.
func YAML(m *v1alpha1.MachineAttestation) ([]byte, error) {
	fields, err := manifest(m)
	if err != nil {
		return nil, err
	}
	return yaml.Marshal(fields)
}

func unmarshalStrict(raw []byte, into any) error { return yaml.UnmarshalStrict(raw, into) }

func manifest(m *v1alpha1.MachineAttestation) (map[string]any, error) {
	out := m.DeepCopy()
	out.APIVersion, out.Kind, out.ManagedFields = v1alpha1.APIVersion, v1alpha1.KindMachineAttestation, nil
	raw, err := json.Marshal(out)
	if err != nil {
		return nil, fmt.Errorf("encode enrollment: %w", err)
	}
	var fields map[string]any
	if err := json.Unmarshal(raw, &fields); err != nil {
		return nil, fmt.Errorf("encode enrollment: %w", err)
	}
	delete(fields, "status")
	return fields, nil
}

// CheckEnrollment returns what is wrong with an enrollment before it is written. Without a namespace it gets the
// one of the place.
func CheckEnrollment(m *v1alpha1.MachineAttestation) error {
	if m.Spec.MachineRef == nil && m.Spec.Pool == "" {
		return hint.New(errors.New("neither a Machine nor a pool is given"),
			"add --machine NAMESPACE/NAME, or --pool POOL where there are no Machine objects")
	}
	for _, f := range []struct{ flag, name string }{{"name", m.Name}, {"namespace", m.Namespace}} {
		if f.flag == "namespace" && f.name == "" {
			continue
		}
		if len(validation.IsDNS1123Subdomain(f.name)) > 0 {
			return hint.New(fmt.Errorf("%q is not a name", f.name),
				"a %s has only lower-case letters, digits, '-' and '.'; --%s gives one", f.flag, f.flag)
		}
	}
	return nil
}

// CheckGrant bounds the end of a grant; zero takes a grant back.
func CheckGrant(until, now time.Time) error {
	if until.IsZero() {
		return nil
	}
	if left := until.Sub(now); left <= 0 || left > MaxGrant {
		return hint.New(fmt.Errorf("a grant until %s is not honored", until.UTC().Format(time.RFC3339)),
			"it must end in the future, and within 24 hours")
	}
	return nil
}

// named picks from a state what a person calls name. If no machine is called that, it may be an EK or a
// correlation id.
func named(s *admin.State, name string) *admin.State {
	out := *s
	out.Machines, out.Pending, out.Denials = nil, nil, nil
	for _, m := range s.Machines {
		if m.Name == name || m.UID == name || strings.HasSuffix(m.Name, "/"+name) {
			out.Machines = append(out.Machines, m)
		}
	}
	if len(out.Machines) > 0 || !IsHexID(name) {
		return &out
	}
	name = strings.ToLower(name)
	for _, m := range s.Machines {
		if has(m, name) {
			out.Machines = append(out.Machines, m)
		}
	}
	for _, p := range s.Pending {
		if p.ID == name || p.EKSHA256 == name {
			out.Pending = append(out.Pending, p)
		}
	}
	out.Denials = NamedDenials(s.Denials, name)
	return &out
}

// NamedDenials returns the denials of an EK, or with a correlation id. The first 16 digits of an EK are enough.
func NamedDenials(all []audit.Denial, name string) []audit.Denial {
	var found []audit.Denial
	name = strings.ToLower(name)
	for _, d := range all {
		ek := d.EKSHA256 == name || len(name) == 16 && strings.HasPrefix(d.EKSHA256, name)
		if ek || slices.Contains(d.CorrelationIDs, name) {
			found = append(found, d)
		}
	}
	return found
}

// has reports whether an EK, or a correlation id in the history, is m's.
func has(m admin.Machine, name string) bool {
	if slices.Contains(m.EKSHA256, name) {
		return true
	}
	r := m.Record
	return r != nil && (r.Identity.EKSHA256 == name || slices.ContainsFunc(r.History,
		func(h v1alpha1.HistoryEntry) bool { return h.CorrelationID == name }))
}

// IsHexID reports whether name may be a correlation id, the id of a machine that waits, or an EK's hash.
func IsHexID(name string) bool {
	_, err := hex.DecodeString(name)
	return err == nil && (len(name) == 16 || len(name) == 64)
}

// Machine returns the machine that a person calls name, of one namespace or, if it is "", of all.
func Machine(s *admin.State, namespace, name string) (admin.Machine, error) {
	return one(named(inNamespace(s, namespace), name).Machines, name)
}

// inNamespace returns s with only the machines of a namespace; "" is every one.
func inNamespace(s *admin.State, namespace string) *admin.State {
	if namespace == "" {
		return s
	}
	out := *s
	out.Machines = slices.DeleteFunc(slices.Clone(s.Machines),
		func(m admin.Machine) bool { return !strings.HasPrefix(m.Name, namespace+"/") })
	return &out
}

// the one Machine that name stands for.
func one(found []admin.Machine, name string) (admin.Machine, error) {
	switch {
	case len(found) == 0:
		return admin.Machine{}, hint.New(fmt.Errorf("no machine has the name %q", name), "'status' lists all of them")
	case len(found) > 1:
		return admin.Machine{}, Ambiguous(found, name)
	case record.IsBreakGlass(found[0].UID):
		return admin.Machine{}, hint.New(fmt.Errorf("%s is a break-glass token, not a machine", name),
			"'token rotate --now' revokes it")
	}
	return found[0], nil
}

// Ambiguous is the error for a name that several machines have.
func Ambiguous(found []admin.Machine, name string) error {
	var names []string
	for _, m := range found {
		names = append(names, m.Name)
	}
	if names[0] == names[1] {
		names = names[:0]
		for _, m := range found {
			names = append(names, m.UID)
		}
		return hint.New(fmt.Errorf("%d machines have the name %q", len(found), name), "give the UID: %s",
			strings.Join(names, " or "))
	}
	return hint.New(fmt.Errorf("%d machines have the name %q", len(found), name), "give the namespace too: %s",
		strings.Join(names, " or "))
}

// split cuts "namespace/name"; the namespace may be missing.
func split(name string) (namespace, rest string) {
	if ns, n, ok := strings.Cut(name, "/"); ok {
		return ns, n
	}
	return "", name
}

// pendingID is the id of a machine that waits, of what a person may call it: the
// id, the whole EK hash, or the name of its object. "" if it is none.
func pendingID(name string) string {
	name = strings.TrimPrefix(strings.ToLower(name), v1alpha1.PendingPrefix)
	if !IsHexID(name) {
		return ""
	}
	return name[:16]
}
