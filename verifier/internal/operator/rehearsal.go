// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"go.yaml.in/yaml/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/pkg/pointer"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
	"github.com/mcs-attest/mcs-attest/verifier/internal/admin"
	"github.com/mcs-attest/mcs-attest/verifier/internal/hint"
)

// Rehearsable is a machine of a cluster, as a rehearsal needs it.
type Rehearsable struct {
	admin.Machine
	object *machine.Machine
}

// Rehearsables are the machines of these names, or without a name those that are Nodes.
func (c *Cluster) Rehearsables(ctx context.Context, names ...string) (all []Rehearsable, err error) {
	var g *gathered
	if len(names) == 1 {
		if err := c.installed(); err != nil {
			return nil, err
		}
		g, err = c.find(ctx, names[0])
	} else {
		g, err = c.gather(ctx, metav1.ListOptions{})
	}
	if err != nil {
		return nil, err
	}
	var chosen []admin.Machine
	for _, name := range names {
		m, err := one(g.named(c.o.Now(), name).Machines, name)
		if err != nil {
			return nil, err
		}
		chosen = append(chosen, m)
	}
	if len(names) == 0 {
		for _, m := range g.state(c.o.Now()).Machines {
			if m.NodeRef != "" {
				chosen = append(chosen, m)
			}
		}
	}
	ix, seen := g.index(), map[string]bool{}
	for _, m := range chosen {
		object, ok := ix.ByUID(m.UID)
		if !ok {
			return nil, fmt.Errorf("%s: %w", m.Name, errGone)
		}
		if !seen[m.UID] {
			seen[m.UID] = true
			all = append(all, Rehearsable{m, object})
		}
	}
	return all, nil
}

// Rehearsal is an open rehearsal: the MachineAttestation that has the hash of its ticket.
type Rehearsal struct {
	Namespace, Name string
	TicketSHA256    string
}

// Denied returns why the verifier would deny the machine whatever it proves, or nil. Then no rehearsal is necessary.
func (m Rehearsable) Denied() error {
	switch {
	case m.Quarantined:
		return reason.Deny(reason.Quarantined, "Machine %s", m.Name)
	case m.Deleting || m.object.Phase == "Failed":
		return reason.Deny(reason.MachineDeleting, "Machine %s", m.Name)
	}
	return nil
}

// OpenRehearsal writes the hash of a ticket into the machine's record. An earlier ticket is then void.
func (c *Cluster) OpenRehearsal(ctx context.Context, m Rehearsable, ticketSHA256 string,
	until time.Time) (Rehearsal, error) {
	done, err := c.setFields(ctx, m.object, Write{}, map[string]any{"rehearsal": map[string]any{
		"ticketSHA256": ticketSHA256, "until": until.UTC().Format(time.RFC3339),
	}})
	if err != nil {
		return Rehearsal{}, err
	}
	return Rehearsal{done.Object.Namespace, done.Object.Name, ticketSHA256}, nil
}

// CloseRehearsal removes the ticket. A ticket that another administrator wrote since then stays.
func (c *Cluster) CloseRehearsal(ctx context.Context, r Rehearsal) error {
	patch, err := json.Marshal([]map[string]string{
		{"op": "test", "path": "/spec/rehearsal/ticketSHA256", "value": r.TicketSHA256},
		{"op": "remove", "path": "/spec/rehearsal"},
	})
	if err != nil {
		return fmt.Errorf("encode patch: %w", err)
	}
	_, err = c.dynamic.Resource(attestations).Namespace(r.Namespace).Patch(ctx, r.Name, types.JSONPatchType, patch,
		metav1.PatchOptions{FieldManager: c.o.FieldManager})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if apierrors.IsInvalid(err) {
		// The ticket is another one, or the API server rejects the object.
		a, gone := c.attestation(ctx, r)
		if errors.Is(gone, errGone) || gone == nil && (a.Spec.Rehearsal == nil ||
			a.Spec.Rehearsal.TicketSHA256 != r.TicketSHA256) {
			return nil
		}
	}
	return c.failed("patch", attestations, r.Namespace, err)
}

func (c *Cluster) attestation(ctx context.Context, r Rehearsal) (*v1alpha1.MachineAttestation, error) {
	o, err := c.dynamic.Resource(attestations).Namespace(r.Namespace).Get(ctx, r.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, errGone
	} else if err != nil {
		return nil, c.failed("get", attestations, r.Namespace, err)
	}
	var a v1alpha1.MachineAttestation
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &a); err != nil {
		return nil, fmt.Errorf("read MachineAttestation: %w", err)
	}
	return &a, nil
}

// Rehearsed returns the record with the result of a rehearsal, or nil if it has none yet.
func (c *Cluster) Rehearsed(ctx context.Context, r Rehearsal) (*v1alpha1.MachineAttestationStatus, error) {
	a, err := c.attestation(ctx, r)
	if err != nil {
		return nil, err
	}
	if result := a.Status.Rehearsal; result == nil || result.TicketSHA256 != r.TicketSHA256 {
		return nil, nil
	}
	return &a.Status, nil
}

// UserData reads the pointer config of a machine. It is empty if the Machine names no Secret.
func (c *Cluster) UserData(ctx context.Context, m Rehearsable) (secret.Bytes, pointer.UserData, error) {
	meta := pointer.UserData{Name: m.object.UserDataSecret}
	if meta.Name == "" {
		return secret.Bytes{}, meta, nil
	}
	full := m.object.Namespace + "/" + meta.Name
	o, err := c.core.Secrets(m.object.Namespace).Get(ctx, meta.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return secret.Bytes{}, meta, hint.New(fmt.Errorf("there is no Secret %s", full),
			"a new machine of the same set could not boot either; restore the Secret with the user data")
	} else if err != nil {
		return secret.Bytes{}, meta, c.failed("get", secrets, m.object.Namespace, err)
	}
	meta.Labels, meta.Annotations = o.Labels, o.Annotations
	for _, owner := range o.OwnerReferences {
		meta.Owners = append(meta.Owners, owner.Kind+"/"+owner.Name)
	}
	// Machine API and Cluster API.
	for _, key := range []string{"userData", "value"} {
		if raw := o.Data[key]; len(raw) > 0 {
			return secret.New(raw), meta, nil
		}
	}
	return secret.Bytes{}, meta, fmt.Errorf("the Secret %s has neither the key userData nor value", full)
}

// OpenRehearsal writes the hash of a ticket into the machine's file. An earlier ticket is then void.
func (f *Folder) OpenRehearsal(ctx context.Context, name, ticketSHA256 string, until time.Time) (Written, error) {
	m, own, err := f.machine(name)
	if err != nil {
		return Written{}, err
	}
	if err := (Rehearsable{admin.About(m, nil), m}).Denied(); err != nil {
		return Written{}, hint.New(err, "%s", reason.From(err).Code.Info().Hint)
	}
	end := metav1.NewTime(until.UTC().Truncate(time.Second))
	return f.setFields(ctx, m, own, Write{}, func(s *v1alpha1.MachineAttestationSpec) {
		s.Rehearsal = &v1alpha1.RehearsalTicket{TicketSHA256: ticketSHA256, Until: end}
	}, func(spec *yaml.Node) {
		ticket := &yaml.Node{Kind: yaml.MappingNode}
		set(ticket, "ticketSHA256", scalar("!!str", ticketSHA256))
		set(ticket, "until", scalar("!!timestamp", end.Format(time.RFC3339)))
		set(spec, "rehearsal", ticket)
	})
}

// PointerConfig reads pointers/POOL.ign of a machine's pool.
func (f *Folder) PointerConfig(name string) (secret.Bytes, error) {
	m, _, err := f.machine(name)
	if err != nil {
		return secret.Bytes{}, err
	}
	if len(m.Pools) != 1 {
		return secret.Bytes{}, hint.New(fmt.Errorf("%s has %d pools, so its pointer config is unknown", m, len(m.Pools)),
			"name the file by --pointer")
	}
	path := f.Config.Path("pointers", m.Pools[0]+".ign")
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return secret.Bytes{}, hint.New(fmt.Errorf("read pointer config: %w", err),
			"name the pointer config with which the machine boots by --pointer")
	}
	if err != nil {
		return secret.Bytes{}, fmt.Errorf("read pointer config: %w", err)
	}
	return secret.New(raw), nil
}
