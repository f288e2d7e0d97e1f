// SPDX-License-Identifier: Apache-2.0

package clouds

import (
	"fmt"
	"net/http"
	"os"

	"github.com/mcs-attest/mcs-attest/testvm/cloud/gcp"
	"github.com/mcs-attest/mcs-attest/testvm/rig"
)

const (
	gcpProject = "demo-project"
	gcpZone    = "europe-west3-b"
)

type google struct{ cloud *gcp.Cloud }

func newGCP(t rig.TB) provider {
	t.Helper()
	c, err := gcp.New(gcp.Options{})
	if err != nil {
		t.Fatalf("emulated Google Cloud: %v", err)
	}
	return google{c}
}

func (g google) section(t rig.TB, dir string) (string, map[string]string, []string) {
	t.Helper()
	api, err := g.cloud.Serve(dir)
	if err != nil {
		t.Fatalf("emulated Google Cloud: %v", err)
	}
	t.Cleanup(api.Close)
	ca, err := os.ReadFile(api.CAFile)
	if err != nil {
		t.Fatalf("emulated Google Cloud: %v", err)
	}
	text := fmt.Sprintf(`
gcp:
  projects: [%s]
  zones: [%s]
  keys: {url: %q, ca: google-api.crt}
  compute: {url: %q, ca: google-api.crt}
`, gcpProject, gcpZone, api.KeysURL, api.ComputeURL)
	return text, map[string]string{"google-api.crt": string(ca)},
		[]string{"GOOGLE_APPLICATION_CREDENTIALS=" + api.Credentials}
}

func (g google) add(t rig.TB, name string, userData []byte, tpm *rig.TPM) (string, http.Handler) {
	t.Helper()
	i := gcp.Instance{Project: gcpProject, Zone: gcpZone, Name: name, UserData: userData}
	if tpm != nil {
		i.EKs = tpm.EndorsementKeys()
	}
	return i.ProviderID(), g.cloud.Metadata(g.cloud.Add(i))
}
