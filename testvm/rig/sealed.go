// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// sealedVolume is the UUID of each volume of [Rig.NewVolume]; guest/98rig-sealed has it, too.
const sealedVolume = "6d63732d-6174-4465-8374-726967000003"

// OpenSealed are the kernel arguments that open the volume as /dev/mapper/sealed, only with the TPM.
const OpenSealed = "rd.luks.name=" + sealedVolume + "=sealed rd.luks.options=tpm2-device=auto,headless=true"

// Seal returns the kernel argument that seals the volume to PCRs ("7+11") in the initramfs, before
// the agent's cap and before the volume is opened. If the image has a key for signatures of PCR 11
// ([UKI].SignPCR11), the volume is also sealed to that key. Both need [Initrd].Sealed.
func Seal(pcrs string) string { return "rig.seal=" + pcrs }

// NewVolume creates an encrypted volume. Its password is known until a machine seals it.
func (r *Rig) NewVolume() string {
	r.t.Helper()
	dir, err := os.MkdirTemp(r.dir, "volume-")
	r.fatal(err, "volume")
	key, volume := filepath.Join(dir, "key"), filepath.Join(dir, "volume.img")
	r.fatal(os.WriteFile(key, []byte("rig"), 0o600), "volume")
	r.fatal(os.WriteFile(volume, nil, 0o600), "volume")
	r.fatal(os.Truncate(volume, 24<<20), "volume")
	// The emulated machine is slow, and the key has no attacker.
	r.run(dir, nil, "cryptsetup", "luksFormat", "--batch-mode", "--type", "luks2", "--pbkdf", "pbkdf2",
		"--pbkdf-force-iterations", "1000", "--uuid", sealedVolume, "--key-file", key, volume)
	return volume
}

// signPCR11 returns the signatures of PCR 11 after the sections of a unified kernel image, for each
// phase of the boot, as systemd-measure writes them. It needs a TPM for its calculation.
func (r *Rig) signPCR11(dir, key, public string, sections map[string]string) string {
	r.t.Helper()
	socket := filepath.Join(r.dir, "measure.tpm") // the path of a socket has to be short
	tpm := exec.Command("swtpm", "socket", "--tpm2", "--tpmstate", "dir="+dir, "--server", "type=unixio,path="+socket,
		"--ctrl", "type=unixio,path="+socket+".ctrl", "--flags", "not-need-init,startup-clear")
	r.fatal(tpm.Start(), "swtpm")
	defer func() {
		_ = tpm.Process.Kill()
		_ = tpm.Wait()
	}()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(socket); err == nil {
			break
		}
		if time.Now().After(deadline) {
			r.t.Fatalf("swtpm created no socket at %s", socket)
		}
	}
	args := []string{"sign", "--tpm2-device=swtpm:path=" + socket, "--bank=sha256", "--json=short",
		"--private-key=" + key, "--public-key=" + public}
	for _, name := range []string{".linux", ".osrel", ".cmdline", ".initrd", ".pcrpkey"} {
		args = append(args, "--"+strings.TrimPrefix(name, ".")+"="+sections[name])
	}
	return r.run(dir, nil, "/lib/systemd/systemd-measure", args...)
}

// Programs returns these programs of this host, and the libraries that they are linked with, for
// [VM].Root.
func (r *Rig) Programs(paths ...string) map[string]string {
	r.t.Helper()
	files := map[string]string{}
	for _, path := range paths {
		needed := []string{path}
		for _, word := range strings.Fields(r.run(r.dir, nil, "ldd", path)) {
			if strings.HasPrefix(word, "/") {
				needed = append(needed, word)
			}
		}
		for _, name := range needed {
			b, err := os.ReadFile(name)
			r.fatal(err, "program")
			files[strings.TrimPrefix(name, "/")] = string(b)
		}
	}
	return files
}
