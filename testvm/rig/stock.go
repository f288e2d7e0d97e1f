// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"encoding/base64"
	"encoding/json"
	"os"
)

// StockPolicy accepts machines whose boot image does not have the agent.
const StockPolicy = `apiVersion: mcs-attest.dev/v1alpha1
kind: AttestationPolicy
metadata:
  name: default
spec:
  pools: ["*"]
  unattested: PreApproved
  stage: RealRoot
`

// StockImage returns the configuration of a verifier that serves the agent, and a pre-approved config
// that starts it in the real root of a [CoreOSDisk] without the agent.
func (r *Rig) StockImage() VerifierConfig {
	r.t.Helper()
	agent, err := os.ReadFile(r.Agent())
	r.fatal(err, "agent")
	return VerifierConfig{
		Policy: StockPolicy, Extra: "\nagents: {folder: agents, architectures: [amd64]}\n",
		Files: map[string]string{
			"agents/mcs-attest-agent-amd64":   string(agent),
			"configs/worker.pre-approved.ign": r.preApproved(),
		},
	}
}

// preApproved returns a pre-approved config with what the rig's real root needs instead of systemd.
func (r *Rig) preApproved() string {
	r.t.Helper()
	var files []any
	for path, from := range map[string]string{"/etc/rig-realroot": "rig-realroot", "/etc/rig-bin/systemctl": "systemctl"} {
		content, err := guestFiles.ReadFile("guest/stock/" + from)
		r.fatal(err, "guest files")
		files = append(files, map[string]any{"path": path, "mode": 0o755, "overwrite": true, "contents": map[string]any{
			"source": "data:;base64," + base64.StdEncoding.EncodeToString(content)}})
	}
	raw, err := json.Marshal(map[string]any{"ignition": map[string]any{"version": "3.2.0"},
		"storage": map[string]any{"files": files}})
	r.fatal(err, "pre-approved config")
	return string(raw)
}
