// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"log/slog"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"

	"github.com/mcs-attest/mcs-attest/deploy"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/sources"
)

// In each overlay, both accounts may read every source of the overlay's configuration, and may watch nothing else.
// The chart has the same objects.
func TestSources_OverlaysGrantEachSource(t *testing.T) {
	if FrontAccount != deploy.ServiceAccount {
		t.Errorf("the processes that serve have the account %s", deploy.ServiceAccount)
	}
	for _, overlay := range deploy.Overlays {
		configuration := configured(t, overlay)
		c, err := New(&rest.Config{Host: "https://192.0.2.1"}, *configuration.Kubernetes, Options{
			Log: slog.New(slog.DiscardHandler), ProvisioningToken: configuration.ProvisioningToken,
		})
		if err != nil {
			t.Fatal(err)
		}
		var needed []*sources.Source
		for _, s := range c.watches.Sources() {
			if overlay == "openshift" || s.Kind.String() != poolKind.String() { // other clusters do not have the kind
				needed = append(needed, s)
			}
		}
		for _, account := range []string{deploy.ServiceAccount, deploy.Controller} {
			granted := deploy.Grants(t, overlay, account)
			covers := func(g deploy.Grant, s *sources.Source, verb string) bool {
				return g.Verb == verb && g.Group == s.Group && g.Resource == s.Resource && g.Subresource == "" &&
					(g.Namespace == "" || g.Namespace == s.Namespace) && (g.Name == "" || g.Name == s.Name)
			}
			for _, s := range needed {
				for _, verb := range []string{"list", "watch"} {
					if !slices.ContainsFunc(granted, func(g deploy.Grant) bool { return covers(g, s, verb) }) {
						t.Errorf("overlay %s: %s may not %s %s", overlay, account, verb, s)
					}
				}
			}
			for _, g := range granted {
				watched := func(s *sources.Source) bool { return covers(g, s, "watch") }
				if g.Verb == "watch" && !slices.ContainsFunc(needed, watched) {
					t.Errorf("overlay %s: %s may %s, which is no source", overlay, account, g)
				}
			}
		}
	}
}

// configured returns the configuration of an overlay.
func configured(t *testing.T, overlay string) *config.Config {
	t.Helper()
	for _, o := range deploy.Objects(t, overlay) {
		if o.GetKind() != "ConfigMap" || o.GetName() != "mcs-attest-config" {
			continue
		}
		text, _, err := unstructured.NestedString(o.Object, "data", "mcs-attest.yaml")
		if err != nil {
			t.Fatal(err)
		}
		c, err := config.Parse("overlay "+overlay, []byte(text), t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	t.Fatalf("overlay %s has no configuration", overlay)
	return nil
}
