// SPDX-License-Identifier: Apache-2.0

package render_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/coreos/ignition/v2/config/v3_5"

	"github.com/mcs-attest/mcs-attest/pkg/manifest"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/render"
)

// FuzzRender parses any input as manifests and renders every pool in it. The result is a
// denial, or a config that Ignition accepts, and it is reproducible.
func FuzzRender(f *testing.F) {
	names, err := filepath.Glob("testdata/cluster/*.yaml")
	if err != nil {
		f.Fatal(err)
	}
	var all []byte
	for _, name := range names {
		raw, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
		all = append(append(all, "---\n"...), raw...)
	}
	f.Add(all)
	for _, s := range secrets {
		f.Add(append(bytes.Clone(all), "---\n"+needed("50-probe", file("/etc/probe", gz(s.text)))...))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		in, problems := render.Parse("f.yaml", raw)
		if manifest.Failed(problems) {
			return
		}
		in, problems = render.Join(in)
		if manifest.Failed(problems) {
			return
		}
		for _, p := range in.Pools {
			whole, err := render.Full(p.Name, in)
			if err != nil {
				if reason.From(err).Code != reason.ConfigUnavailable {
					t.Fatalf("refused as %v", err)
				}
				continue
			}
			if _, rpt, err := v3_5.Parse(whole.Config.Spec.Config.Raw); err != nil {
				t.Fatalf("%v %v", err, rpt)
			}
			again, err := render.Full(p.Name, in)
			if err != nil || again.Config.Name != whole.Config.Name {
				t.Fatalf("a second render: %v", err)
			}
			part, err := render.PreApproved(p.Name, in, render.Options{})
			if err != nil {
				continue
			}
			if _, rpt, err := v3_5.Parse(part.Config.Spec.Config.Raw); err != nil {
				t.Fatalf("%v %v", err, rpt)
			}
			for _, o := range part.Origins {
				if o.Why == "" {
					t.Fatalf("%v does not say why", o)
				}
			}
		}
	})
}

// FuzzSearch searches any input for secrets. The search terminates and is reproducible.
func FuzzSearch(f *testing.F) {
	for _, s := range secrets {
		f.Add([]byte(s.text))
		f.Add([]byte(gz(s.text)))
		f.Add([]byte(b64(s.text)))
	}
	for _, h := range harmless {
		f.Add([]byte(h.text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		text = text[:min(len(text), 1<<16)]
		manifest := needed("50-probe", file("/etc/probe", string(text)))
		one, two := parse(t, "f.yaml", manifest).Configs[0].Secrets(), parse(t, "f.yaml", manifest).Configs[0].Secrets()
		if len(one) != len(two) {
			t.Fatalf("%v, then %v", one, two)
		}
	})
}
