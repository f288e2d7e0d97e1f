// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/hint"
	"github.com/mcs-attest/mcs-attest/verifier/internal/keys"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/records"
)

// retried calls a write again if another client changed the same object.
func retried(write func() error) error {
	contended := func(err error) bool { return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) }
	err := retry.OnError(retry.DefaultRetry, contended, write)
	if contended(err) {
		return errContended
	}
	return err
}

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

// Enroll creates an enrollment. With Replace it changes an existing one, and keeps what an administrator wrote there
// besides the TPM and the machine. A grant or a ticket of the former TPM is removed.
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
	var out Written
	err = retried(func() error {
		made, err := client.Create(ctx, o, metav1.CreateOptions{FieldManager: c.o.FieldManager, DryRun: w.server(),
			FieldValidation: metav1.FieldValidationStrict})
		switch {
		case err == nil:
			out, err = written("created", made)
			return err
		case !apierrors.IsAlreadyExists(err):
			return c.rejected("create", a.Namespace, err)
		case !w.Replace:
			return hint.New(fmt.Errorf("MachineAttestation %s/%s exists", a.Namespace, a.Name),
				"choose another --name, or add --replace")
		}
		have, gone := client.Get(ctx, a.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(gone) && !missingType(gone) {
			return err
		} else if gone != nil {
			return c.failed("get", attestations, a.Namespace, gone)
		}
		if err := replaceEnrollment(have, o); err != nil {
			return fmt.Errorf("replace enrollment: %w", err)
		}
		made, changed := client.Update(ctx, have, metav1.UpdateOptions{FieldManager: c.o.FieldManager, DryRun: w.server(),
			FieldValidation: metav1.FieldValidationStrict})
		switch {
		case changed == nil:
			out, err = written("replaced", made)
			return err
		case apierrors.IsNotFound(changed):
			return err
		}
		return c.rejected("update", a.Namespace, changed)
	})
	return out, err
}

// replaceEnrollment gives have the TPM and the machine of want. [setEnrollment] does the same for a file.
func replaceEnrollment(have, want *unstructured.Unstructured) error {
	spec, _, err := unstructured.NestedMap(have.Object, "spec")
	if err != nil {
		return err
	}
	next, _, err := unstructured.NestedMap(want.Object, "spec")
	if err != nil {
		return err
	}
	// The reference may also have the API of the Machine.
	ref := func(spec map[string]any) [2]string {
		name, _, _ := unstructured.NestedString(spec, "machineRef", "name")
		namespace, _, _ := unstructured.NestedString(spec, "machineRef", "namespace")
		return [2]string{cmp.Or(namespace, have.GetNamespace()), name}
	}
	if spec == nil || ref(spec) != ref(next) {
		delete(spec, "machineRef")
	} else {
		delete(next, "machineRef")
	}
	for _, field := range []string{"pool", "reattest", "rehearsal"} {
		delete(spec, field)
	}
	if spec == nil {
		spec = map[string]any{}
	}
	maps.Copy(spec, next)
	return unstructured.SetNestedMap(have.Object, spec, "spec")
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
// name it. Unread is why there may be more of them.
func (c *Cluster) target(ctx context.Context, name string) (m *machine.Machine, own []*v1alpha1.MachineAttestation,
	unread, err error) {
	if err := c.installed(); err != nil {
		return nil, nil, nil, err
	}
	g, err := c.find(ctx, name)
	if err != nil {
		return nil, nil, nil, err
	}
	found, err := one(g.named(c.o.Now(), name).Machines, name)
	if err != nil {
		return nil, nil, nil, err
	}
	m, ok := g.index().ByUID(found.UID)
	if !ok {
		return nil, nil, nil, errGone
	}
	for _, k := range sorted(g.objects) {
		if belongs(g.objects[k], m) || m.Mirror != nil && belongs(g.objects[k], m.Mirror) {
			own = append(own, g.objects[k])
		}
	}
	return m, own, g.unread, nil
}

// Quarantine stops a machine, or lets it go on. It stands on the Machine's
// record, or on the object that stands in for the Machine; what an administrator
// wrote into its other enrollments is lifted, too.
func (c *Cluster) Quarantine(ctx context.Context, name string, stop bool, w Write) ([]Written, error) {
	m, own, unread, err := c.target(ctx, name)
	if err != nil {
		return nil, err
	}
	if stop {
		done, err := c.setFields(ctx, m, w, map[string]any{"quarantined": true})
		return []Written{done}, err
	}
	return c.clearField(ctx, own, unread, w, "quarantined",
		func(s *v1alpha1.MachineAttestationSpec) bool { return s.Quarantined })
}

// Reattest grants one more attestation until a time; zero takes the grant back.
func (c *Cluster) Reattest(ctx context.Context, name string, until time.Time, w Write) ([]Written, error) {
	if err := CheckGrant(until, c.o.Now()); err != nil {
		return nil, err
	}
	m, own, unread, err := c.target(ctx, name)
	if err != nil {
		return nil, err
	}
	if until.IsZero() {
		return c.clearField(ctx, own, unread, w, "reattest",
			func(s *v1alpha1.MachineAttestationSpec) bool { return s.Reattest != nil })
	}
	done, err := c.setFields(ctx, m, w,
		map[string]any{"reattest": map[string]any{"until": until.UTC().Format(time.RFC3339)}})
	return []Written{done}, err
}

// clearField removes a field from every MachineAttestation that has it. If none has it, unread is the error.
func (c *Cluster) clearField(ctx context.Context, own []*v1alpha1.MachineAttestation, unread error, w Write,
	field string, has func(*v1alpha1.MachineAttestationSpec) bool) ([]Written, error) {
	var all []Written
	for _, a := range own {
		if !has(&a.Spec) {
			continue
		}
		var done Written
		err := retried(func() (err error) {
			done, err = c.patch(ctx, a.Namespace, a.Name, a.UID, w, map[string]any{field: nil})
			return err
		})
		if apierrors.IsNotFound(err) {
			continue // it was deleted, and its field with it
		}
		if errors.Is(err, errContended) {
			return all, err
		}
		if err != nil {
			return all, c.failed("patch", attestations, a.Namespace, err)
		}
		all = append(all, done)
	}
	if len(all) == 0 {
		return nil, unread
	}
	return all, nil
}

// setFields writes fields of the spec into the Machine's record, which is made if it is
// not there yet. A machine of both Machine APIs has one record.
func (c *Cluster) setFields(ctx context.Context, m *machine.Machine, w Write, spec map[string]any) (Written, error) {
	if m.Mirror != nil && records.UID(m) == m.Mirror.UID {
		m = m.Mirror
	}
	name := m.UID
	var own types.UID
	if m.StandIn {
		name, own = m.Name, types.UID(m.UID)
	}
	var out Written
	err := retried(func() (err error) {
		out, err = c.patch(ctx, m.Namespace, name, own, w, spec)
		switch {
		case err == nil:
			return nil
		case apierrors.IsConflict(err):
			return err
		case apierrors.IsNotFound(err) && m.StandIn && !missingType(err):
			return errGone
		case !apierrors.IsNotFound(err) || missingType(err):
			return c.failed("patch", attestations, m.Namespace, err)
		}
		if out, err = c.makeRecord(ctx, m, w, spec); err != nil {
			return c.rejected("create", m.Namespace, err)
		}
		return nil
	})
	return out, err
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
		o, metav1.CreateOptions{FieldManager: c.o.FieldManager, DryRun: w.server(),
			FieldValidation: metav1.FieldValidationStrict})
	if err != nil {
		return Written{}, err
	}
	return written("created", made)
}

// patch changes only fields of a spec, so that it rarely conflicts with another writer. With a UID it changes only the
// object that has it, and another one of this name is not found.
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
	before, err := client.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return Written{}, err
	}
	if own != "" && before.GetUID() != own {
		return Written{}, apierrors.NewNotFound(attestations.GroupResource(), name)
	}
	if w.DryRun == DryRunClient {
		for field, v := range spec {
			if v == nil {
				unstructured.RemoveNestedField(before.Object, "spec", field)
			} else if err := unstructured.SetNestedField(before.Object, v, "spec", field); err != nil {
				return Written{}, err
			}
		}
		return written("changed", before)
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

func (c *Cluster) keys(ctx context.Context) (*corev1.Secret, Keys, error) {
	o, err := c.core.Secrets(c.o.Own).Get(ctx, keysSecret, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, Keys{}, hint.New(fmt.Errorf("there is no Secret %s/%s", c.o.Own, keysSecret),
			"the controller that leads creates it: check 'kubectl -n %s get deployment mcs-attest-controller' and its log",
			c.o.Own)
	} else if err != nil {
		return nil, Keys{}, c.failed("get", secrets, c.o.Own, err)
	}
	k, err := keys.Parse(o.Data)
	if err != nil {
		return nil, Keys{}, fmt.Errorf("the Secret %s/%s: %w", c.o.Own, keysSecret, err)
	}
	return o, k, nil
}

// ChangeKeys replaces the keys by what change makes of them. Change may be called
// more than once.
func (c *Cluster) ChangeKeys(ctx context.Context, change func(Keys) (Keys, error)) error {
	return retried(func() error {
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
		maps.Copy(o.Data, data)
		_, err = c.core.Secrets(c.o.Own).Update(ctx, o, metav1.UpdateOptions{FieldManager: c.o.FieldManager})
		return c.failed("update", secrets, c.o.Own, err)
	})
}

// configMap is the verifier's configuration in a cluster.
const configMap, configKey = "mcs-attest-config", "mcs-attest.yaml"

// errNoConfiguration means that the cluster has no verifier yet.
var errNoConfiguration = errors.New("there is no ConfigMap")

// Configuration is that of the cluster's verifier. The error is errNoConfiguration if there is none.
func (c *Cluster) Configuration(ctx context.Context) (*config.Config, error) {
	name := "ConfigMap " + c.o.Own + "/" + configMap
	o, err := c.core.ConfigMaps(c.o.Own).Get(ctx, configMap, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, hint.New(fmt.Errorf("%w %s/%s", errNoConfiguration, c.o.Own, configMap),
			"check that the verifier is installed in the namespace %s", c.o.Own)
	} else if err != nil {
		return nil, c.failed("get", configMaps, c.o.Own, err)
	}
	return config.Parse(name, []byte(o.Data[configKey]), "/")
}
