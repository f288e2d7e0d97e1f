// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/policy"
	"github.com/mcs-attest/mcs-attest/pkg/provisioning"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/folder"
	"github.com/mcs-attest/mcs-attest/verifier/internal/hint"
	"github.com/mcs-attest/mcs-attest/verifier/internal/keys"
	"github.com/mcs-attest/mcs-attest/verifier/internal/wholefile"
)

// defaultProvisioningSecret is where the provisioning token is in a cluster whose
// verifier has no configuration that says otherwise.
const defaultProvisioningSecret = "openshift-config/machineconfig-auth"

// ProvisioningSettings are the verifier's, as far as they are about the token.
type ProvisioningSettings struct {
	Where   string // for a person
	Grace   time.Duration
	Origins []string
}

// ChangeProvisioning returns the new content of the stored token; exists is false if none
// is stored. Callers may call it more than once.
type ChangeProvisioning func(tokens provisioning.Tokens, exists bool) (provisioning.Tokens, error)

// Provisioning reads the provisioning token; exists is false if there is none.
func (f *Folder) Provisioning(context.Context) (tokens provisioning.Tokens, exists bool, err error) {
	path := f.Config.Path("keys", keys.ProvisioningFile)
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return provisioning.Tokens{}, false, nil
	}
	if err != nil {
		return provisioning.Tokens{}, false, fmt.Errorf("read provisioning token: %w", err)
	}
	data, err := provisioning.ParseFile(raw)
	if err == nil {
		tokens, err = provisioning.Parse(data)
	}
	if err != nil {
		return provisioning.Tokens{}, true, malformed(path, err)
	}
	return tokens, true, nil
}

func malformed(where string, err error) error {
	return hint.New(fmt.Errorf("%s: %w", where, err),
		"correct it, or remove it and create a new token: 'token provisioning create'")
}

// ChangeProvisioning writes keys/machineconfig-auth.
func (f *Folder) ChangeProvisioning(ctx context.Context, change ChangeProvisioning) error {
	tokens, exists, err := f.Provisioning(ctx)
	if err != nil {
		return err
	}
	next, err := change(tokens, exists)
	if err != nil {
		return err
	}
	return wholefile.Write(f.Config.Path("keys", keys.ProvisioningFile), 0o600, next.EncodeFile().Expose())
}

// ProvisioningSettings are the configuration's.
func (f *Folder) ProvisioningSettings(context.Context) (ProvisioningSettings, error) {
	return settings(f.Config, f.Config.Path("keys", keys.ProvisioningFile)), nil
}

func settings(c *config.Config, where string) ProvisioningSettings {
	return ProvisioningSettings{Where: where, Grace: time.Duration(c.ProvisioningToken.Grace), Origins: c.Origins}
}

// Policies are those in policies/.
func (f *Folder) Policies(context.Context) (*policy.Set, error) {
	s, err := folder.Load(f.Config.Data)
	if err != nil {
		return nil, err
	}
	for _, p := range s.Problems {
		if !p.Warning && strings.HasPrefix(p.File, f.Config.Path("policies")) {
			return nil, p
		}
	}
	return s.Policies, nil
}

// Policies are the cluster's.
func (c *Cluster) Policies(ctx context.Context) (*policy.Set, error) {
	var all []v1alpha1.AttestationPolicy
	err := c.each(ctx, policies, "", metav1.ListOptions{}, func(o *unstructured.Unstructured) error {
		var p v1alpha1.AttestationPolicy
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &p); err != nil {
			return fmt.Errorf("AttestationPolicy %s: %w", o.GetName(), err)
		}
		all = append(all, p)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return policy.Compile(all...)
}

// provisioningSecret is its namespace and name. A cluster may have a token before
// it has a verifier.
func (c *Cluster) provisioningSecret(ctx context.Context) (*config.Config, string, string, error) {
	k, err := c.Configuration(ctx)
	name := defaultProvisioningSecret
	switch {
	case err == nil:
		name = k.ProvisioningToken.Secret
	case !errors.Is(err, errNoConfiguration): // its token may be in another Secret
		return nil, "", "", err
	}
	namespace, name, err := config.SplitName(name)
	return k, namespace, name, err
}

// Provisioning reads the Secret.
func (c *Cluster) Provisioning(ctx context.Context) (provisioning.Tokens, bool, error) {
	_, namespace, name, err := c.provisioningSecret(ctx)
	if err != nil {
		return provisioning.Tokens{}, false, err
	}
	_, tokens, exists, err := c.readProvisioning(ctx, namespace, name)
	return tokens, exists, err
}

func (c *Cluster) readProvisioning(ctx context.Context, namespace,
	name string) (*corev1.Secret, provisioning.Tokens, bool, error) {
	o, err := c.core.Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, provisioning.Tokens{}, false, nil
	} else if err != nil {
		return nil, provisioning.Tokens{}, false, c.failed("get", secrets, namespace, err)
	}
	tokens, err := provisioning.Parse(o.Data)
	if err != nil {
		return nil, provisioning.Tokens{}, true, malformed("Secret "+namespace+"/"+name, err)
	}
	return o, tokens, true, nil
}

// ChangeProvisioning writes the Secret.
func (c *Cluster) ChangeProvisioning(ctx context.Context, change ChangeProvisioning) error {
	_, namespace, name, err := c.provisioningSecret(ctx)
	if err != nil {
		return err
	}
	return retried(func() error {
		o, tokens, exists, err := c.readProvisioning(ctx, namespace, name)
		if err != nil {
			return err
		}
		next, err := change(tokens, exists)
		if err != nil {
			return err
		}
		if !exists {
			_, err = c.core.Secrets(namespace).Create(ctx, &corev1.Secret{Type: corev1.SecretTypeOpaque, Data: next.Data(),
				ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
			}, metav1.CreateOptions{FieldManager: c.o.FieldManager})
			return c.failed("create", secrets, namespace, err)
		}
		// Keys that the verifier owns and no longer writes are deleted.
		delete(o.Data, provisioning.KeyPrevious)
		delete(o.Data, provisioning.KeyPreviousExpires)
		maps.Copy(o.Data, next.Data())
		_, err = c.core.Secrets(namespace).Update(ctx, o, metav1.UpdateOptions{FieldManager: c.o.FieldManager})
		return c.failed("update", secrets, namespace, err)
	})
}

// ProvisioningSettings are those of the verifier's ConfigMap, or the defaults.
func (c *Cluster) ProvisioningSettings(ctx context.Context) (ProvisioningSettings, error) {
	k, namespace, name, err := c.provisioningSecret(ctx)
	if err != nil {
		return ProvisioningSettings{}, err
	}
	if k == nil {
		return ProvisioningSettings{Where: "Secret " + namespace + "/" + name, Grace: provisioning.DefaultGrace}, nil
	}
	return settings(k, "Secret "+namespace+"/"+name), nil
}
