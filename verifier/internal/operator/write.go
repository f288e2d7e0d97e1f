// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/hint"
	"github.com/mcs-attest/mcs-attest/verifier/internal/keys"
)

// tries limits how often a write starts again after a conflict.
const tries = 5

func (w Write) server() []string {
	if w.DryRun == DryRunServer {
		return []string{metav1.DryRunAll}
	}
	return nil
}

func written(done string, o *unstructured.Unstructured) (Written, error) {
	a := new(v1alpha1.MachineAttestation)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, a); err != nil {
		return Written{}, fmt.Errorf("read MachineAttestation: %w", err)
	}
	return Written{Where: "machineattestation.mcs-attest.dev/" + a.Name + " in namespace " + a.Namespace, Done: done,
		Object: a}, nil
}

func toObject(a *v1alpha1.MachineAttestation) (*unstructured.Unstructured, error) {
	fields, err := manifest(a)
	if err != nil {
		return nil, err
	}
	return &unstructured.Unstructured{Object: fields}, nil
}

// Enroll creates an enrollment, or with Replace gives an existing one this spec.
func (c *Cluster) Enroll(ctx context.Context, a *v1alpha1.MachineAttestation, w Write) (Written, error) {
	if a.Namespace == "" {
		ns, err := c.enrollmentNamespace(ctx)
		if err != nil {
			return Written{}, err
		}
		a.Namespace = ns
	}
	if err := CheckEnrollment(a); err != nil {
		return Written{}, err
	}
	o, err := toObject(a)
	if err != nil {
		return Written{}, err
	}
	if w.DryRun == DryRunClient {
		return written("created", o)
	}
	if err := c.installed(); err != nil {
		return Written{}, err
	}
	client := c.dynamic.Resource(attestations).Namespace(a.Namespace)
	for range tries {
		made, err := client.Create(ctx, o, metav1.CreateOptions{FieldManager: c.o.FieldManager, DryRun: w.server(),
			FieldValidation: metav1.FieldValidationStrict})
		if err == nil {
			return written("created", made)
		}
		if !apierrors.IsAlreadyExists(err) {
			return Written{}, c.rejected("create", a.Namespace, err)
		}
		if !w.Replace {
			return Written{}, hint.New(fmt.Errorf("MachineAttestation %s/%s exists", a.Namespace, a.Name),
				"choose another --name, or add --replace")
		}
		have, err := c.get(ctx, attestations, a.Namespace, a.Name)
		if err != nil {
			return Written{}, err
		}
		if have == nil {
			continue
		}
		spec, _, _ := unstructured.NestedMap(o.Object, "spec")
		if stopped, _, _ := unstructured.NestedBool(have.Object, "spec", "quarantined"); stopped {
			spec["quarantined"] = true // only "quarantine --release" ends it
		}
		if err := unstructured.SetNestedMap(have.Object, spec, "spec"); err != nil {
			return Written{}, fmt.Errorf("replace enrollment: %w", err)
		}
		made, err = client.Update(ctx, have, metav1.UpdateOptions{FieldManager: c.o.FieldManager, DryRun: w.server(),
			FieldValidation: metav1.FieldValidationStrict})
		if err == nil {
			return written("replaced", made)
		}
		if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			return Written{}, c.rejected("update", a.Namespace, err)
		}
	}
	return Written{}, errContended
}

var errContended = errors.New("other clients keep changing the same object; try again")

// rejected is failed for a write: the namespace does not exist, or validation fails.
func (c *Cluster) rejected(verb, namespace string, err error) error {
	if apierrors.IsNotFound(err) && !missingType(err) {
		return hint.New(fmt.Errorf("%s machineattestations: %w", verb, err),
			"check that the namespace %s exists, or choose another with -n",
			namespace)
	}
	return c.failed(verb, attestations, namespace, err)
}

// target finds the Machine that name stands for, and the MachineAttestations that
// name it.
func (c *Cluster) target(ctx context.Context, name string) (*machine.Machine, []*v1alpha1.MachineAttestation, error) {
	if err := c.installed(); err != nil {
		return nil, nil, err
	}
	g, err := c.find(ctx, name)
	if err != nil {
		return nil, nil, err
	}
	found, err := Machine(g.state(c.o.Now()), "", name)
	if err != nil {
		return nil, nil, err
	}
	m, ok := g.index().ByUID(found.UID)
	if !ok {
		return nil, nil, errGone
	}
	var own []*v1alpha1.MachineAttestation
	for _, k := range sorted(g.objects) {
		if belongs(g.objects[k], m) {
			own = append(own, g.objects[k])
		}
	}
	return m, own, nil
}

// Quarantine stops a machine, or lets it go on. It stands on the Machine's
// record, or on the object that stands in for the Machine; what an administrator
// wrote into its other enrollments is lifted, too.
func (c *Cluster) Quarantine(ctx context.Context, name string, stop bool, w Write) ([]Written, error) {
	m, own, err := c.target(ctx, name)
	if err != nil {
		return nil, err
	}
	if stop {
		done, err := c.setFields(ctx, m, w, map[string]any{"quarantined": true})
		return []Written{done}, err
	}
	return c.clearField(ctx, own, w, "quarantined", func(s *v1alpha1.MachineAttestationSpec) bool { return s.Quarantined })
}

// Reattest grants one more attestation until a time; zero takes the grant back.
func (c *Cluster) Reattest(ctx context.Context, name string, until time.Time, w Write) ([]Written, error) {
	if err := CheckGrant(until, c.o.Now()); err != nil {
		return nil, err
	}
	m, own, err := c.target(ctx, name)
	if err != nil {
		return nil, err
	}
	if until.IsZero() {
		return c.clearField(ctx, own, w, "reattest",
			func(s *v1alpha1.MachineAttestationSpec) bool { return s.Reattest != nil })
	}
	done, err := c.setFields(ctx, m, w,
		map[string]any{"reattest": map[string]any{"until": until.UTC().Format(time.RFC3339)}})
	return []Written{done}, err
}

// clearField removes a field from every MachineAttestation that has it.
func (c *Cluster) clearField(ctx context.Context, own []*v1alpha1.MachineAttestation, w Write, field string,
	has func(*v1alpha1.MachineAttestationSpec) bool) ([]Written, error) {
	var all []Written
	for _, a := range own {
		if !has(&a.Spec) {
			continue
		}
		done, err := c.patch(ctx, a.Namespace, a.Name, a.UID, w, map[string]any{field: nil})
		if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
			continue // it was deleted, and its field with it
		}
		if err != nil {
			return all, c.failed("patch", attestations, a.Namespace, err)
		}
		all = append(all, done)
	}
	return all, nil
}

// setFields writes fields of the spec into the Machine's record, which is made if it is
// not there yet.
func (c *Cluster) setFields(ctx context.Context, m *machine.Machine, w Write, spec map[string]any) (Written, error) {
	name := m.UID
	var own types.UID
	if m.StandIn {
		name, own = m.Name, types.UID(m.UID)
	}
	for range tries {
		done, err := c.patch(ctx, m.Namespace, name, own, w, spec)
		switch {
		case err == nil:
			return done, nil
		case apierrors.IsConflict(err) && m.StandIn, apierrors.IsNotFound(err) && m.StandIn && !missingType(err):
			return Written{}, errGone
		case apierrors.IsConflict(err):
			continue
		case !apierrors.IsNotFound(err) || missingType(err):
			return Written{}, c.failed("patch", attestations, m.Namespace, err)
		}
		done, err = c.makeRecord(ctx, m, w, spec)
		if err == nil {
			return done, nil
		}
		if !apierrors.IsAlreadyExists(err) {
			return Written{}, c.rejected("create", m.Namespace, err)
		}
	}
	return Written{}, errContended
}

// makeRecord makes the record that the verifier would make: named by the Machine's
// UID, so that there can be only one, and deleted with the Machine.
func (c *Cluster) makeRecord(ctx context.Context, m *machine.Machine, w Write, spec map[string]any) (Written, error) {
	a := &v1alpha1.MachineAttestation{}
	a.Namespace, a.Name = m.Namespace, m.UID
	a.OwnerReferences = []metav1.OwnerReference{{APIVersion: m.APIVersion, Kind: m.Kind, Name: m.Name,
		UID: types.UID(m.UID)}}
	a.Spec.MachineRef = &v1alpha1.MachineReference{APIVersion: m.APIVersion, Kind: m.Kind, Namespace: m.Namespace,
		Name: m.Name}
	o, err := toObject(a)
	if err != nil {
		return Written{}, err
	}
	for field, v := range spec {
		if err := unstructured.SetNestedField(o.Object, v, "spec", field); err != nil {
			return Written{}, err
		}
	}
	if w.DryRun == DryRunClient {
		return written("created", o)
	}
	made, err := c.dynamic.Resource(attestations).Namespace(m.Namespace).Create(ctx,
		o, metav1.CreateOptions{FieldManager: c.o.FieldManager, DryRun: w.server()})
	if err != nil {
		return Written{}, err
	}
	return written("created", made)
}

// patch changes only fields of a spec, so that it conflicts with no other writer. With a
// UID it changes only the object that has it.
func (c *Cluster) patch(ctx context.Context, namespace, name string, own types.UID, w Write,
	spec map[string]any) (Written, error) {
	body := map[string]any{"spec": spec}
	if own != "" {
		body["metadata"] = map[string]any{"uid": string(own)}
	}
	raw, err := json.Marshal(body)
	if err != nil {
		return Written{}, fmt.Errorf("encode patch: %w", err)
	}
	client := c.dynamic.Resource(attestations).Namespace(namespace)
	if w.DryRun == DryRunClient {
		o, err := client.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return Written{}, err
		}
		for field, v := range spec {
			if v == nil {
				unstructured.RemoveNestedField(o.Object, "spec", field)
			} else if err := unstructured.SetNestedField(o.Object, v, "spec", field); err != nil {
				return Written{}, err
			}
		}
		return written("changed", o)
	}
	before, err := client.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return Written{}, err
	}
	after, err := client.Patch(ctx, name, types.MergePatchType, raw, metav1.PatchOptions{FieldManager: c.o.FieldManager,
		DryRun: w.server(), FieldValidation: metav1.FieldValidationStrict})
	if err != nil {
		return Written{}, err
	}
	if before.GetResourceVersion() == after.GetResourceVersion() && w.DryRun != DryRunServer {
		return written("unchanged", after)
	}
	return written("changed", after)
}

// keysSecret holds what signs and seals, in the verifier's own namespace.
const keysSecret = "mcs-attest-keys"

// Keys reads the Secret mcs-attest-keys.
func (c *Cluster) Keys(ctx context.Context) (Keys, error) {
	_, k, err := c.keys(ctx)
	return k, err
}

func (c *Cluster) keys(ctx context.Context) (*unstructured.Unstructured, Keys, error) {
	o, err := c.get(ctx, secrets, c.o.Own, keysSecret)
	if err != nil {
		return nil, Keys{}, err
	}
	if o == nil {
		return nil, Keys{}, hint.New(fmt.Errorf("there is no Secret %s/%s", c.o.Own, keysSecret),
			"the verifier creates it when it starts: check that one runs in the namespace %s", c.o.Own)
	}
	data, err := secretData(o)
	if err != nil {
		return nil, Keys{}, err
	}
	k, err := keys.Parse(data)
	if err != nil {
		return nil, Keys{}, fmt.Errorf("the Secret %s/%s: %w", c.o.Own, keysSecret, err)
	}
	return o, k, nil
}

// ChangeKeys replaces the keys by what change makes of them. Change may be called
// more than once.
func (c *Cluster) ChangeKeys(ctx context.Context, change func(Keys) (Keys, error)) error {
	for range tries {
		o, k, err := c.keys(ctx)
		if err != nil {
			return err
		}
		if k, err = change(k); err != nil {
			return err
		}
		data, err := k.Data()
		if err != nil {
			return err
		}
		setSecretData(o, data)
		_, err = c.dynamic.Resource(secrets).Namespace(c.o.Own).Update(ctx, o,
			metav1.UpdateOptions{FieldManager: c.o.FieldManager})
		if err == nil {
			return nil
		}
		if !apierrors.IsConflict(err) {
			return c.failed("update", secrets, c.o.Own, err)
		}
	}
	return errContended
}

// configMap is the verifier's configuration in a cluster.
const configMap, configKey = "mcs-attest-config", "mcs-attest.yaml"

func (c *Cluster) config(ctx context.Context) (*config.Config, error) {
	o, err := c.get(ctx, configMaps, c.o.Own, configMap)
	if err != nil {
		return nil, err
	}
	name := "ConfigMap " + c.o.Own + "/" + configMap
	if o == nil {
		return nil, hint.New(fmt.Errorf("there is no %s", name),
			"check that the verifier is installed in the namespace %s", c.o.Own)
	}
	text, _, _ := unstructured.NestedString(o.Object, "data", configKey)
	return config.Parse(name, []byte(text), "/")
}

// Issuer is the tokens' "iss".
func (c *Cluster) Issuer(ctx context.Context) (string, error) {
	k, err := c.config(ctx)
	if err != nil {
		return "", err
	}
	return k.Issuer(), nil
}

// PublishDelay is how long a new key is published before it is used.
func (c *Cluster) PublishDelay(ctx context.Context) (time.Duration, error) {
	k, err := c.config(ctx)
	if err != nil {
		return 0, err
	}
	return time.Duration(k.KeyPublishDelay), nil
}
