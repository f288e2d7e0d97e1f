// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// SealedVolume is the UUID of each volume of [Rig.Seal].
const SealedVolume = "6d63732d-6174-4465-8374-726967000003"

// OpenSealed are the kernel arguments that open it as /dev/mapper/sealed, only with the TPM.
const OpenSealed = "rd.luks.name=" + SealedVolume + "=sealed rd.luks.options=tpm2-device=auto,headless=true"

// Seal creates an encrypted volume whose key systemd-cryptenroll seals to PCRs ("7+11"). The TPM's
// PCRs then have the values that these extensions of a reset TPM give; each one is
// "PCR:sha256=DIGEST".
func (r *Rig) Seal(t *TPM, pcrs string, extensions ...string) string {
	r.t.Helper()
	dir, err := os.MkdirTemp("", "rig") // the path of a socket has to be short
	r.fatal(err, "sealing")
	r.t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "tpm")
	tpm := exec.Command("swtpm", "socket", "--tpm2", "--tpmstate", "dir="+t.dir, "--server", "type=unixio,path="+socket,
		"--ctrl", "type=unixio,path="+socket+".ctrl", "--flags", "not-need-init,startup-clear")
	r.fatal(tpm.Start(), "swtpm")
	defer func() {
		_ = tpm.Process.Kill()
		_ = tpm.Wait()
	}()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(socket); err == nil {
			break
		}
		if time.Now().After(deadline) {
			r.t.Fatalf("swtpm created no socket at %s", socket)
		}
	}
	for _, e := range extensions {
		r.run(dir, []string{"TPM2TOOLS_TCTI=swtpm:path=" + socket}, "tpm2_pcrextend", e)
	}
	key, volume := filepath.Join(dir, "key"), filepath.Join(r.dir, "sealed-"+filepath.Base(dir)+".img")
	r.fatal(os.WriteFile(key, []byte("rig"), 0o600), "sealing")
	r.fatal(os.WriteFile(volume, nil, 0o600), "sealing")
	r.fatal(os.Truncate(volume, 24<<20), "sealing")
	// The emulated machine is slow, and the key has no attacker.
	r.run(dir, nil, "cryptsetup", "luksFormat", "--batch-mode", "--type", "luks2", "--pbkdf", "pbkdf2",
		"--pbkdf-force-iterations", "1000", "--uuid", SealedVolume, "--key-file", key, volume)
	r.run(dir, nil, "systemd-cryptenroll", "--unlock-key-file="+key, "--wipe-slot=password",
		"--tpm2-device=swtpm:path="+socket, "--tpm2-pcrs="+pcrs, volume)
	return volume
}
