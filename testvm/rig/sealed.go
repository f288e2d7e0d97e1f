// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"crypto/aes"
	"crypto/rand"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/crypto/xts"

	"github.com/mcs-attest/mcs-attest/testvm/children"
)

// sealedRoot is the UUID of each volume of [Rig.NewSealedRoot]; guest/98rig-sealed has it, too.
const sealedRoot = "6d63732d-6174-4465-8374-726967000003"

// OpenSealed are the kernel arguments that open the volume as /dev/mapper/root, only with the TPM.
const OpenSealed = "rd.luks.name=" + sealedRoot + "=root rd.luks.options=tpm2-device=auto,headless=true"

// Seal returns the kernel argument that seals the volume to PCRs ("7+11") in the initramfs, before
// the agent's cap and before the volume is opened. If the image has a key for signatures of PCR 11
// ([UKI].SignPCR11), the volume is also sealed to that key. Both need [Initrd].Sealed.
func Seal(pcrs string) string { return "rig.seal=" + pcrs }

// NewSealedRoot creates an encrypted volume with the rig's root file system and these files: path to
// content. Its password is known until a machine seals it.
func (r *Rig) NewSealedRoot(files map[string]string) string {
	r.t.Helper()
	const sector, offset = 512, 16 << 20
	root, err := os.ReadFile(r.rootDisk(files, nil))
	r.fatal(err, "sealed root")
	root = append(root, make([]byte, -len(root)&(sector-1))...)
	dir, err := os.MkdirTemp(r.dir, "volume-")
	r.fatal(err, "sealed root")
	password, key, volume := filepath.Join(dir, "password"), filepath.Join(dir, "key"), filepath.Join(dir, "volume.img")
	volumeKey := make([]byte, 64)
	_, err = rand.Read(volumeKey)
	r.fatal(err, "sealed root")
	r.fatal(os.WriteFile(password, []byte("rig"), 0o600), "sealed root")
	r.fatal(os.WriteFile(key, volumeKey, 0o600), "sealed root")
	r.fatal(os.WriteFile(volume, nil, 0o600), "sealed root")
	r.fatal(os.Truncate(volume, int64(offset+len(root))), "sealed root")
	// The emulated machine is slow, and the password has no attacker.
	r.run(dir, nil, "cryptsetup", "luksFormat", "--batch-mode", "--type", "luks2", "--pbkdf", "pbkdf2",
		"--pbkdf-force-iterations", "1000", "--uuid", sealedRoot, "--cipher", "aes-xts-plain64", "--key-size", "512",
		"--sector-size", strconv.Itoa(sector), "--offset", strconv.Itoa(offset/sector), "--volume-key-file", key,
		"--key-file", password, volume)
	// To write into the volume, cryptsetup needs root and the device mapper.
	cipher, err := xts.NewCipher(aes.NewCipher, volumeKey)
	r.fatal(err, "sealed root")
	for i := 0; i < len(root); i += sector {
		cipher.Encrypt(root[i:i+sector], root[i:i+sector], uint64(i/sector))
	}
	disk, err := os.OpenFile(volume, os.O_WRONLY, 0)
	r.fatal(err, "sealed root")
	defer disk.Close()
	_, err = disk.WriteAt(root, offset)
	r.fatal(err, "sealed root")
	return volume
}

// WantSealed requires that a volume has one key, and that only a TPM with values of these PCRs
// releases it.
func (r *Rig) WantSealed(volume string, pcrs ...int) {
	r.t.Helper()
	var header struct {
		Keyslots map[string]any
		Tokens   map[string]struct {
			Type       string
			Keyslots   []string
			PCRs       []int `json:"tpm2-pcrs"`
			SignedPCRs []int `json:"tpm2_pubkey_pcrs"`
		}
	}
	dump := r.run(r.dir, nil, "cryptsetup", "luksDump", "--dump-json-metadata", volume)
	r.fatal(json.Unmarshal([]byte(dump), &header), "header of the volume")
	for _, token := range header.Tokens {
		if len(header.Tokens) == 1 && len(header.Keyslots) == 1 && len(token.Keyslots) == 1 &&
			token.Type == "systemd-tpm2" && slices.Equal(slices.Concat(token.PCRs, token.SignedPCRs), pcrs) {
			return
		}
	}
	r.t.Fatalf("the volume is not sealed only to the PCRs %v:\n%s", pcrs, dump)
}

// signPCR11 returns the signatures of PCR 11 after the sections of a unified kernel image, for each
// phase of the boot, as systemd-measure writes them. It needs a TPM for its calculation.
func (r *Rig) signPCR11(dir, key, public string, sections map[string]string) string {
	r.t.Helper()
	socket := filepath.Join(r.dir, "measure.tpm") // the path of a socket has to be short
	tpm := exec.Command("swtpm", "socket", "--tpm2", "--tpmstate", "dir="+dir, "--server", "type=unixio,path="+socket,
		"--ctrl", "type=unixio,path="+socket+".ctrl", "--flags", "not-need-init,startup-clear")
	r.fatal(children.Start(tpm), "swtpm")
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
