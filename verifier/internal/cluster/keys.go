package cluster

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	kerrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mcs-attest/mcs-attest/verifier/internal/keys"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/records"
)

var (
	secretsResource = schema.GroupVersionResource{Version: "v1", Resource: "secrets"}
)

// readSecret reads a Secret live; nil if there is none.
func (c *Cluster) readSecret(ctx context.Context, k key) (*unstructured.Unstructured, map[string][]byte, error) {
	o, err := c.dynamic.Resource(secretsResource).Namespace(k.namespace).Get(ctx, k.name, metav1.GetOptions{})
	if records.Missing(err) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("read Secret %s: %w", k, err)
	}
	var s corev1.Secret
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &s); err != nil {
		return o, nil, fmt.Errorf("read Secret %s: %w", k, err)
	}
	return o, s.Data, nil
}

// writeSecret replaces some keys of the data that was read; nil deletes one.
// Whoever was faster is right: the watch brings what they wrote.
func (c *Cluster) writeSecret(ctx context.Context, k key, o *unstructured.Unstructured, data map[string][]byte) error {
	secrets := c.dynamic.Resource(secretsResource).Namespace(k.namespace)
	if o == nil {
		o = &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "Secret", "type": string(corev1.SecretTypeOpaque),
			"metadata": map[string]any{"namespace": k.namespace, "name": k.name},
		}}
		setData(o, data)
		_, err := secrets.Create(ctx, o, metav1.CreateOptions{})
		if kerrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	}
	o = o.DeepCopy()
	setData(o, data)
	_, err := secrets.Update(ctx, o, metav1.UpdateOptions{})
	if kerrors.IsConflict(err) {
		return nil
	}
	return err
}

func setData(o *unstructured.Unstructured, data map[string][]byte) {
	encoded, _, err := unstructured.NestedStringMap(o.Object, "data")
	if err != nil || encoded == nil {
		encoded = map[string]string{}
	}
	for name, value := range data {
		if value == nil {
			delete(encoded, name)
		} else {
			encoded[name] = base64.StdEncoding.EncodeToString(value)
		}
	}
	// Every value is a string: nothing to fail.
	_ = unstructured.SetNestedStringMap(o.Object, encoded, "data")
}

// keepKeys makes the keys when there are none, rotates them when it is time, and
// with renew replaces those from before a restore of etcd, which every replica that
// remembers does: the first that writes the Secret has done it for all. One that
// cannot be read is an administrator's to look at: it is not written over.
func (c *Cluster) keepKeys(ctx context.Context, renew bool) error {
	at := key{c.config.Namespace, KeysSecret}
	o, data, err := c.readSecret(ctx, at)
	if err != nil {
		return err
	}
	now := c.o.Now()
	var pair keys.Pair
	if o != nil {
		if pair, err = keys.Parse(data); err != nil {
			return nil // reported by the watch
		}
	}
	publish := time.Duration(0)
	voided := o != nil && c.guard.Voided(pair)
	switch {
	case voided && !renew && c.guard.Repairing(): // done when the latches are in place
		return nil
	case voided:
		pair = keys.Pair{}
	case o == nil:
	case renew, pair.Rotating(now), now.Before(pair.Due(now, c.o.KeyRotation)):
		return nil
	default:
		publish = c.o.KeyPublishDelay
	}
	next, err := pair.Rotate(now, publish)
	if err != nil {
		return err
	}
	if data, err = next.Data(); err != nil {
		return err
	}
	c.tasks.limit.Accept()
	if err := c.writeSecret(ctx, at, o, data); err != nil {
		return fmt.Errorf("write the keys: %w", err)
	}
	if renew {
		// Somebody may have been faster; what they wrote must be good, too.
		if _, data, err = c.readSecret(ctx, at); err != nil {
			return err
		}
		if pair, err = keys.Parse(data); err != nil {
			return fmt.Errorf("read the new keys: %w", err)
		}
		if c.guard.Voided(pair) {
			return errors.New("the keys are still those from before the restore")
		}
	}
	c.log.Info("new keys", "used_from", now.Add(publish).UTC().Format(time.RFC3339), "first", o == nil)
	return nil
}
