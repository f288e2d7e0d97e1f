// SPDX-License-Identifier: Apache-2.0

package csr

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/mcs-attest/mcs-attest/verifier/internal/audit"
	"github.com/mcs-attest/mcs-attest/verifier/internal/cli/env"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/hint"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/approval"
	"github.com/mcs-attest/mcs-attest/verifier/internal/operator"
)

// fileRequest is what the flags say of files.
type fileRequest struct {
	name                   string
	paths                  []string
	certificate, authority string
	at                     string
}

// requestFromFiles reads everything from files. The configuration, if there is one,
// says by which rules.
func requestFromFiles(ctx context.Context, e *env.Env, files fileRequest, attestation config.Attestation,
	stdin io.Reader) (*operator.Request, error) {
	k, err := operator.DefaultApprover("mcs-attest")
	if err != nil {
		return nil, err
	}
	if e.Config != "" {
		own, err := env.LoadConfig(e.Config)
		if err != nil {
			return nil, err
		}
		if own.Approver != nil {
			k = own
		}
	}
	operator.DecideWith(k, attestation)
	r := &operator.Request{Running: true, Rules: operator.Rules(k)}
	objects, err := newFileObjects()
	if err != nil {
		return nil, err
	}
	for _, path := range files.paths {
		raw, err := env.ReadInput(path, stdin)
		if err != nil {
			return nil, err
		}
		if err := objects.read(path, raw); err != nil {
			return nil, err
		}
	}
	w := &fileCluster{objects: objects}
	for path, into := range map[string]*[]byte{files.certificate: &w.certificate, files.authority: &w.authority} {
		if path == "" {
			continue
		}
		if *into, err = os.ReadFile(path); err != nil {
			return nil, fmt.Errorf("read PEM file: %w", err)
		}
	}
	if r.CSR, err = chosen(objects.requests, files.name); err != nil {
		return nil, err
	}
	if w.at, err = files.asOf(r.CSR); err != nil {
		return nil, err
	}
	snapshot, err := approval.TakeSnapshot(ctx, objects, r.Rules, []string{"*"})
	if err != nil {
		return nil, err
	}
	w.Reader = approval.NewReader(approval.Options{
		Client: objects, Config: *k.Approver, Rules: r.Rules, Namespaces: []string{"*"}, Machines: snapshot,
		Records: snapshot, Waiting: snapshot.Waiting, Now: func() time.Time { return w.at },
	})
	r.Cluster = w
	return r, nil
}

// asOf is when files are taken to be of. A record's credentials end, and what waits
// is counted for an hour: of an old must-gather nothing would be left today.
func (f fileRequest) asOf(csr *certificatesv1.CertificateSigningRequest) (time.Time, error) {
	if f.at != "" {
		at, err := time.Parse(time.RFC3339, f.at)
		if err != nil {
			return at, env.Usage(hint.New(fmt.Errorf("--at %q is not a time", f.at), "write it like 2026-11-21T10:02:00Z"))
		}
		return at, nil
	}
	if csr.CreationTimestamp.IsZero() {
		return time.Now(), nil
	}
	return csr.CreationTimestamp.Add(time.Minute), nil
}

// chosen is the request of this name, or the only one.
func chosen(all []certificatesv1.CertificateSigningRequest,
	name string) (*certificatesv1.CertificateSigningRequest, error) {
	for i := range all {
		if name == "" && len(all) == 1 || all[i].Name == name {
			return &all[i], nil
		}
	}
	switch {
	case len(all) == 0:
		return nil, hint.New(errors.New("the files contain no CertificateSigningRequest"),
			"'oc get csr NAME -o yaml' writes one")
	case name == "":
		var names []string
		for i := range all {
			names = append(names, audit.Clean(all[i].Name))
		}
		return nil, fmt.Errorf("the files contain %d requests; name one of them: %s", len(all), strings.Join(names, ", "))
	}
	return nil, fmt.Errorf("no request in the files has the name %q", name)
}
