// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/verifier/internal/admin"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/folder"
	"github.com/mcs-attest/mcs-attest/verifier/internal/hint"
	"github.com/mcs-attest/mcs-attest/verifier/internal/wholefile"
)

// Folder is a standalone verifier's folder.
type Folder struct {
	Config *config.Config
	// File is where Config was read. Default: mcs-attest.yaml in the folder.
	File string
	// Namespace bounds what State shows; "" is everything.
	Namespace string
	Now       func() time.Time
	// Offline is the state without a serving verifier.
	Offline func(*config.Config, time.Time) (*admin.State, error)
}

// State asks the serving verifier or, if there is none, reads the folder.
func (f *Folder) State(ctx context.Context) (*admin.State, error) {
	s, err := admin.Ask(ctx, f.Config.Path("state", "admin.sock"))
	if errors.Is(err, admin.ErrNotServing) {
		s, err = f.Offline(f.Config, f.Now())
	}
	if err != nil {
		return nil, err
	}
	return inNamespace(s, f.Namespace), nil
}

// Find is State without what is not called name.
func (f *Folder) Find(ctx context.Context, name string) (*admin.State, error) {
	s, err := f.State(ctx)
	if err != nil {
		return nil, err
	}
	return named(s, name), nil
}

// MachineNamespace is where a Machine named without a namespace is, or will be.
func (f *Folder) MachineNamespace(ctx context.Context, name string) (string, error) {
	s, err := f.Find(ctx, name)
	if err != nil {
		return "", err
	}
	switch {
	case len(s.Machines) > 1:
		return "", Ambiguous(s.Machines, name)
	case len(s.Machines) == 1:
		namespace, _ := split(s.Machines[0].Name)
		return namespace, nil
	case f.Namespace != "":
		return f.Namespace, nil
	}
	return "default", nil
}

// Enroll writes an enrollment into attestations/. With Replace it changes the one of that name where it is, and
// keeps what an administrator wrote there besides the TPM and the machine. A grant or a ticket of the former TPM is
// removed.
func (f *Folder) Enroll(_ context.Context, m *v1alpha1.MachineAttestation, w Write) (Written, error) {
	m.Namespace = cmp.Or(m.Namespace, "default")
	if err := CheckEnrollment(m); err != nil {
		return Written{}, err
	}
	m.CreationTimestamp = metav1.NewTime(f.Now().UTC().Truncate(time.Second))
	path, _, err := f.file(m.Namespace, m.Name)
	switch {
	case err != nil:
		return Written{}, err
	case path != "" && !w.Replace:
		return Written{}, hint.New(fmt.Errorf("%s exists", path), "choose another --name, or add --replace")
	case path != "":
		out, err := f.amend(machine.Enrollment{MachineAttestation: *m}, w, func(spec *yaml.Node) {
			setEnrollment(spec, m.Spec)
		})
		if out.Done == "changed" {
			out.Done = "replaced"
		}
		return out, err
	}
	path = f.Config.Path("attestations", m.Namespace+"."+m.Name+".yaml")
	if _, err := os.Lstat(path); err == nil {
		return Written{}, hint.New(fmt.Errorf("%s exists, and does not have %s/%s", path, m.Namespace, m.Name),
			"choose another --name, or correct the file")
	}
	out := Written{Where: path, File: true, Done: "created", Object: m}
	if w.dry() {
		return out, nil
	}
	raw, err := YAML(m)
	if err != nil {
		return Written{}, err
	}
	if err := wholefile.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return Written{}, err
	}
	return out, wholefile.Write(path, 0o644, raw)
}

// dry: a folder has no server to ask, so either dry run is the same.
func (w Write) dry() bool { return w.DryRun == DryRunClient || w.DryRun == DryRunServer }

// Quarantine stops a machine, or lets it go on.
func (f *Folder) Quarantine(ctx context.Context, name string, stop bool, w Write) ([]Written, error) {
	m, own, err := f.machine(name)
	if err != nil {
		return nil, err
	}
	if stop {
		done, err := f.setFields(ctx, m, own, w, func(s *v1alpha1.MachineAttestationSpec) { s.Quarantined = true },
			func(spec *yaml.Node) { set(spec, "quarantined", scalar("!!bool", "true")) })
		return []Written{done}, err
	}
	return f.clearField(own, w, "quarantined", func(s *v1alpha1.MachineAttestationSpec) bool { return s.Quarantined })
}

// clearField removes a field from every MachineAttestation that has it.
func (f *Folder) clearField(own []machine.Enrollment, w Write, field string,
	has func(*v1alpha1.MachineAttestationSpec) bool) ([]Written, error) {
	var all []Written
	for _, e := range own {
		if !has(&e.Spec) {
			continue
		}
		done, err := f.amend(e, w, func(spec *yaml.Node) { set(spec, field, nil) })
		if err != nil {
			return all, err
		}
		all = append(all, done)
	}
	return all, nil
}

// Reattest grants one more attestation until a time; zero takes the grant back.
func (f *Folder) Reattest(ctx context.Context, name string, until time.Time, w Write) ([]Written, error) {
	if err := CheckGrant(until, f.Now()); err != nil {
		return nil, err
	}
	m, own, err := f.machine(name)
	if err != nil {
		return nil, err
	}
	if until.IsZero() {
		return f.clearField(own, w, "reattest",
			func(s *v1alpha1.MachineAttestationSpec) bool { return s.Reattest != nil })
	}
	end := metav1.NewTime(until.UTC().Truncate(time.Second))
	done, err := f.setFields(ctx, m, own, w, func(s *v1alpha1.MachineAttestationSpec) {
		s.Reattest = &v1alpha1.ReattestGrant{Until: end}
	},
		func(spec *yaml.Node) {
			grant := &yaml.Node{Kind: yaml.MappingNode}
			set(grant, "until", scalar("!!timestamp", end.Format(time.RFC3339)))
			set(spec, "reattest", grant)
		})
	return []Written{done}, err
}

// setFields writes into the machine's first MachineAttestation, or into a new one.
func (f *Folder) setFields(ctx context.Context, m *machine.Machine, own []machine.Enrollment, w Write,
	fresh func(*v1alpha1.MachineAttestationSpec), change func(*yaml.Node)) (Written, error) {
	if len(own) > 0 {
		return f.amend(own[0], w, change)
	}
	e := &v1alpha1.MachineAttestation{}
	e.Name, e.Namespace = m.Name, m.Namespace
	e.Spec.MachineRef = &v1alpha1.MachineReference{APIVersion: m.APIVersion, Kind: m.Kind, Namespace: m.Namespace,
		Name: m.Name}
	fresh(&e.Spec)
	return f.Enroll(ctx, e, w)
}

// machine finds a Machine of the folder and the MachineAttestations that name it.
func (f *Folder) machine(name string) (*machine.Machine, []machine.Enrollment, error) {
	s, err := folder.Load(f.Config.Data)
	if err != nil {
		return nil, nil, err
	}
	state := &admin.State{}
	for _, m := range s.Machines.Machines() {
		state.Machines = append(state.Machines, admin.About(m, nil))
	}
	found, err := Machine(state, f.Namespace, name)
	if err != nil {
		return nil, nil, err
	}
	m, ok := s.Machines.ByUID(found.UID)
	if !ok {
		return nil, nil, fmt.Errorf("%s was deleted", found.Name)
	}
	var own []machine.Enrollment
	for _, e := range s.Enrollments {
		if e.Kind == v1alpha1.KindMachineAttestation && belongs(&e.MachineAttestation, m) {
			own = append(own, e)
		}
	}
	return m, own, nil
}

// belongs: e names the Machine, or is it.
func belongs(e *v1alpha1.MachineAttestation, m *machine.Machine) bool {
	ref := e.Spec.MachineRef
	if ref == nil {
		return m.StandIn && e.Namespace == m.Namespace && e.Name == m.Name
	}
	namespace := ref.Namespace
	namespace = cmp.Or(namespace, e.Namespace)
	group, _, _ := strings.Cut(ref.APIVersion, "/")
	own, _, _ := strings.Cut(m.APIVersion, "/")
	return !m.StandIn && namespace == m.Namespace && ref.Name == m.Name && (group == "" || group == own)
}

// amend changes the spec of a MachineAttestation in the file that it is in; the
// rest of the file, comments included, stays.
func (f *Folder) amend(e machine.Enrollment, w Write, change func(spec *yaml.Node)) (Written, error) {
	path, raw, err := f.file(e.Namespace, e.Name)
	if err != nil {
		return Written{}, err
	}
	if path == "" {
		return Written{}, fmt.Errorf("MachineAttestation %s/%s is no longer in a file of the folder", e.Namespace, e.Name)
	}
	next, object, err := amendYAML(raw, e.Namespace, e.Name, change)
	if object != nil {
		object.Namespace = e.Namespace // the file may not name the default
	}
	mode, irregular := regular(path)
	switch {
	case err != nil:
		return Written{}, fmt.Errorf("%s: %w", path, err)
	case bytes.Equal(raw, next):
		return Written{Where: path, File: true, Done: "unchanged", Object: object}, nil
	case filepath.Ext(path) == ".json":
		return Written{}, hint.New(fmt.Errorf("%s is JSON, which this command does not edit", path),
			"edit the spec of %s/%s in that file", e.Namespace, e.Name)
	case irregular != nil:
		return Written{}, irregular
	case w.dry():
		return Written{Where: path, File: true, Done: "changed", Object: object}, nil
	}
	return Written{Where: path, File: true, Done: "changed", Object: object}, wholefile.Write(path, mode, next)
}

// regular returns the mode of a manifest that is to be replaced. A link to a file elsewhere, for example in a checkout
// of Git, must not be replaced: later changes of that file would have no effect.
func regular(path string) (os.FileMode, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return 0, fmt.Errorf("read manifest: %w", err)
	}
	if !info.Mode().IsRegular() {
		return 0, hint.New(fmt.Errorf("%s is not a regular file, and this command does not replace it", path),
			"if it is a link, edit the file that it refers to")
	}
	return info.Mode().Perm(), nil
}
