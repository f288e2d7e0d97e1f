// SPDX-License-Identifier: Apache-2.0

package mcs_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/mcs-attest/mcs-attest/pkg/credential"
	"github.com/mcs-attest/mcs-attest/pkg/mcs"
	"github.com/mcs-attest/mcs-attest/pkg/render"
)

// pools are rendered from a cluster's MachineConfigs.
func pools(t *testing.T) (all []*render.Rendered) {
	t.Helper()
	names, err := filepath.Glob("../render/testdata/cluster/*.yaml")
	if err != nil || len(names) == 0 {
		t.Fatalf("no MachineConfigs: %v", err)
	}
	var inputs []render.Input
	for _, name := range names {
		raw, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		in, problems := render.Parse(name, raw)
		if len(problems) > 0 {
			t.Fatal(problems)
		}
		inputs = append(inputs, in)
	}
	in, problems := render.Join(inputs...)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	for _, p := range in.Pools {
		full, err := render.Full(p.Name, in)
		if err != nil {
			t.Fatal(err)
		}
		pre, err := render.PreApproved(p.Name, in, render.Options{Allow: []string{"/var/lib/kubelet/config.json"}})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, full, pre)
	}
	return all
}

// From MachineConfigs to a node's config: pools in every version. The Ignition of Debian 12
// validates the versions that it supports.
func TestPoolsAreServedInEveryVersion(t *testing.T) {
	for _, r := range pools(t) {
		part := "whole"
		if r.PreApproved {
			part = "pre-approved"
		}
		t.Run(r.Pool+" "+part, func(t *testing.T) {
			for _, v := range all {
				raw, err := mcs.Config(r, extras(), v)
				if err != nil {
					t.Errorf("%s: %v", v, err)
					continue
				}
				slot, err := credential.Find(raw)
				if err != nil || (slot == nil) != r.PreApproved {
					t.Errorf("%s: the place of the credential: %v, %v", v, slot != nil, err)
				}
				if v.Major < 3 || v.Minor > 3 {
					continue
				}
				cmd := exec.Command("ignition-validate", "-")
				cmd.Stdin = bytes.NewReader(raw)
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Errorf("%s: %v: %s", v, err, out)
				}
			}
		})
	}
}
