// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"crypto"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/mcs-attest/mcs-attest/testvm/children"
)

// TPM is the state of one software TPM: its seeds, keys and certificates. Like a real TPM, it
// outlives each start of a machine.
type TPM struct {
	r   *Rig
	dir string
}

// NewTPM creates a TPM with an RSA-2048 and a P-384 endorsement key, each with a certificate of the
// rig's own CA in NV, and the SHA-256 PCR bank.
func (r *Rig) NewTPM() *TPM { return r.newTPM(r.tpmCA("tpmca")) }

// NewTPMOfAnotherMaker creates a TPM whose certificates come from a CA that is not in EKRoots.
func (r *Rig) NewTPMOfAnotherMaker() *TPM { return r.newTPM(r.tpmCA("othertpmca")) }

func (r *Rig) newTPM(ca string) *TPM {
	r.t.Helper()
	dir, err := os.MkdirTemp(r.dir, "tpm-")
	r.fatal(err, "TPM")
	r.run(dir, nil, "swtpm_setup", "--tpm2", "--tpmstate", dir, "--config", filepath.Join(ca, "setup.conf"),
		"--create-ek-cert", "--create-platform-cert", "--lock-nvram", "--not-overwrite", "--write-ek-cert-files", dir)
	return &TPM{r: r, dir: dir}
}

// tpmCA writes the configuration of the rig's own EK certificate authority; swtpm_setup creates its
// keys with the first TPM. It does not use the system's /var/lib/swtpm-localca.
func (r *Rig) tpmCA(name string) string {
	r.t.Helper()
	dir := filepath.Join(r.dir, name)
	if _, err := os.Stat(dir); err == nil {
		return dir
	}
	r.fatal(os.Mkdir(dir, 0o755), "TPM CA")
	localca, err := exec.LookPath("swtpm_localca")
	r.fatal(err, "TPM CA (package swtpm-tools)")
	for name, content := range map[string]string{
		"setup.conf": fmt.Sprintf("create_certs_tool = %s\ncreate_certs_tool_config = %s/localca.conf\n"+
			"create_certs_tool_options = %s/localca.options\nactive_pcr_banks = sha256\n", localca, dir, dir),
		"localca.conf": fmt.Sprintf("statedir = %s\nsigningkey = %s/signkey.pem\nissuercert = %s/issuercert.pem\n"+
			"certserial = %s/certserial\n", dir, dir, dir, dir),
		"localca.options": "--platform-manufacturer rig\n--platform-version 1\n--platform-model rig\n",
	} {
		r.fatal(os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644), "TPM CA")
	}
	return dir
}

// EKRoots returns the certificates, in PEM, that vouch for the rig's TPMs: the root and the issuing
// CA. A TPM must have been created before.
func (r *Rig) EKRoots() []byte {
	r.t.Helper()
	var out []byte
	for _, name := range []string{"swtpm-localca-rootca-cert.pem", "issuercert.pem"} {
		b, err := os.ReadFile(filepath.Join(r.tpmCA("tpmca"), name))
		r.fatal(err, "EK roots")
		out = append(out, b...)
	}
	return out
}

// EKSHA256 returns the SHA-256, in hex, of each endorsement key's SubjectPublicKeyInfo, which an
// enrollment names.
func (t *TPM) EKSHA256() []string {
	t.r.t.Helper()
	var hashes []string
	for _, cert := range t.ekCertificates() {
		sum := sha256.Sum256(cert.RawSubjectPublicKeyInfo)
		hashes = append(hashes, hex.EncodeToString(sum[:]))
	}
	return hashes
}

// EndorsementKeys returns the public keys, which a cloud has for its virtual TPMs.
func (t *TPM) EndorsementKeys() []crypto.PublicKey {
	t.r.t.Helper()
	var keys []crypto.PublicKey
	for _, cert := range t.ekCertificates() {
		keys = append(keys, cert.PublicKey)
	}
	return keys
}

func (t *TPM) ekCertificates() (certs []*x509.Certificate) {
	t.r.t.Helper()
	for _, name := range []string{"ek-rsa2048.crt", "ek-secp384r1.crt"} {
		b, err := os.ReadFile(filepath.Join(t.dir, name))
		t.r.fatal(err, "EK certificate")
		if block, _ := pem.Decode(b); block != nil {
			b = block.Bytes
		}
		cert, err := x509.ParseCertificate(b)
		t.r.fatal(err, "EK certificate")
		certs = append(certs, cert)
	}
	return certs
}

// start runs the TPM for one machine until QEMU disconnects. A machine that starts again resets the
// TPM: PCRs are cleared, keys stay.
func (t *TPM) start(socket string) {
	t.r.t.Helper()
	cmd := exec.Command("swtpm", "socket", "--tpm2", "--tpmstate", "dir="+t.dir,
		"--ctrl", "type=unixio,path="+socket, "--flags", "startup-clear", "--terminate")
	log, err := os.Create(socket + ".log")
	t.r.fatal(err, "swtpm")
	t.r.keep(log.Name())
	cmd.Stderr = log
	t.r.fatal(children.Start(cmd), "swtpm")
	t.r.fatal(log.Close(), "swtpm")
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	t.r.t.Cleanup(func() {
		select {
		case <-done:
		case <-time.After(2 * time.Second):
			if err := cmd.Process.Kill(); err != nil {
				t.r.t.Logf("rig: ending swtpm: %v", err)
			}
			<-done
		}
	})
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(socket); err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.r.t.Fatalf("swtpm created no socket at %s", socket)
		}
	}
}
