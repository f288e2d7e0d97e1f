// SPDX-License-Identifier: Apache-2.0

package certs

import (
	"context"
	"errors"

	"github.com/mcs-attest/mcs-attest/pkg/mcscert"
	"github.com/mcs-attest/mcs-attest/verifier/internal/certfolder"
	"github.com/mcs-attest/mcs-attest/verifier/internal/cli/env"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/hint"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/controllers/mcscertificates"

	"github.com/mcs-attest/mcs-attest/verifier/internal/operator"
)

// keeper keeps the certificates of a folder or of a cluster.
type keeper interface {
	Inspect(context.Context) (mcscert.Status, error)
	Rotate(ctx context.Context, force mcscert.Force) (mcscert.Step, mcscert.Status, error)
	init(ctx context.Context, force bool) (made string, s mcscert.Status, err error)
	due() ([]mcscert.Step, mcscert.Status, error)
	// after states what is left for a person to do after a step.
	after(mcscert.Step) string
}

// openKeeper chooses as the other commands do. Hosts are in place of the configuration's.
func openKeeper(ctx context.Context, e *env.Env, hosts []string) (keeper, error) {
	b, err := e.Open()
	if err != nil {
		return nil, err
	}
	if f, ok := b.(*operator.Folder); ok {
		if hosts == nil {
			hosts = f.Config.CertificateHosts()
		}
		return folderKeeper{&certfolder.Folder{Dir: f.Config.Data, Hosts: hosts}}, nil
	}
	cluster, ok := b.(*operator.Cluster)
	if !ok {
		return nil, errors.New("there are no certificates here")
	}
	k, err := clusterConfig(ctx, e, cluster)
	if err != nil {
		return nil, err
	}
	if k.Kubernetes == nil {
		return nil, hint.New(errors.New("the configuration of the cluster's verifier has no section kubernetes"),
			"add the section to the ConfigMap mcs-attest-config; without it, the configuration is for a folder")
	}
	api, err := kube.NewClient(cluster.Rest())
	if err != nil {
		return nil, err
	}
	// An administrator may list what the controller's account may not.
	r, err := mcscertificates.New(mcscertificates.Options{Client: api, Config: k, Hostnames: hosts, ListUserData: true})
	return clusterKeeper{r}, err
}

func clusterConfig(ctx context.Context, e *env.Env, cluster *operator.Cluster) (*config.Config, error) {
	if e.Config != "" && !e.Plugin {
		k, err := env.LoadConfig(e.Config)
		if err != nil || k.Kubernetes != nil {
			return k, err
		}
	}
	return cluster.Configuration(ctx)
}

type folderKeeper struct{ f *certfolder.Folder }

func (k folderKeeper) Inspect(context.Context) (mcscert.Status, error) { return k.f.Inspect() }

func (k folderKeeper) init(context.Context, bool) (string, mcscert.Status, error) {
	made, err := k.f.Init()
	if err != nil {
		return "", mcscert.Status{},
			hint.New(err, "restore what is missing, or remove the whole folder tls/ to create new certificates")
	}
	s, err := k.f.Inspect()
	if made {
		return "wrote tls/", s, err
	}
	return "kept tls/", s, err
}

func (k folderKeeper) Rotate(_ context.Context, force mcscert.Force) (mcscert.Step, mcscert.Status, error) {
	return k.f.Rotate(force)
}

func (k folderKeeper) due() ([]mcscert.Step, mcscert.Status, error) { return k.f.Due() }

func (folderKeeper) after(step mcscert.Step) string {
	if step == mcscert.StepCA {
		return "now: give pointers/*.ign to every machine that has not booted yet, in place of its previous user data;\n" +
			"then, at least 25 hours later, run 'certs rotate' again"
	}
	return "the verifier uses it within a second; machines need a pointer config with the bundle of tls/ca.crt"
}

type clusterKeeper struct{ *mcscertificates.Reconciler }

func (k clusterKeeper) init(ctx context.Context, force bool) (string, mcscert.Status, error) {
	s, err := k.Init(ctx, force)
	return "the objects exist; a verifier with the section certificates in its configuration updates them", s, err
}

func (clusterKeeper) due() ([]mcscert.Step, mcscert.Status, error) {
	return nil, mcscert.Status{}, errors.New("in a cluster the verifier takes the steps that are due")
}

func (clusterKeeper) after(step mcscert.Step) string {
	if step == mcscert.StepCA {
		return "pointer configs outside the cluster (user data that an administrator distributes) need the new bundle, " +
			"too: run 'certs pointer FILE';\nat least 25 hours later run 'certs rotate' again, or wait until it is due"
	}
	return "the replicas use it immediately"
}
