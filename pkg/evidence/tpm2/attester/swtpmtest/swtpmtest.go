// SPDX-License-Identifier: Apache-2.0

// Package swtpmtest starts software TPMs for tests. It needs Debian's packages swtpm and
// swtpm-tools. Without them a test fails with a message that names them.
package swtpmtest

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/binary"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// TPM is a running software TPM. Like a hardware TPM it keeps its state between connections.
type TPM struct {
	t         testing.TB
	state     string
	authority string // the directory with the keys and certificates of the CA
	// Socket accepts unframed TPM commands, one connection at a time.
	Socket string
	stop   func()
	last   *Conn
}

// Start creates a TPM with swtpm_setup and starts it. The TPM has an RSA-2048 and a P-384
// endorsement key, persistent and certified by the CA of all these TPMs. Banks is "sha256",
// "sha256,sha384" and so on.
func Start(t testing.TB, banks string) *TPM {
	t.Helper()
	dir, keep := authority(t)
	return start(t, banks, dir, keep)
}

// StartOfAnotherMaker is like [Start], with a CA of its own.
func StartOfAnotherMaker(t testing.TB, banks string) *TPM {
	t.Helper()
	dir := t.TempDir()
	return start(t, banks, dir, func() string { return dir })
}

// start creates a TPM. Its CA is in the directory ca, and after it certified the TPM in the one that keep returns.
func start(t testing.TB, banks, ca string, keep func() string) *TPM {
	t.Helper()
	// The path of a socket has a limit of about 107 bytes, which t.TempDir may exceed.
	state, err := os.MkdirTemp("", "swtpm-")
	fatal(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(state) })
	localca, err := exec.LookPath("swtpm_localca")
	fatal(t, err)
	for name, content := range map[string]string{
		"setup.conf": fmt.Sprintf("create_certs_tool = %s\ncreate_certs_tool_config = %s/localca.conf\n"+
			"create_certs_tool_options = %s/localca.options\nactive_pcr_banks = %s\n", localca, state, state, banks),
		"localca.conf": fmt.Sprintf("statedir = %s\nsigningkey = %s/signkey.pem\nissuercert = %s/issuercert.pem\n"+
			"certserial = %s/certserial\n", ca, ca, ca, ca),
		"localca.options": "--platform-manufacturer test\n--platform-version 1\n--platform-model test\n",
	} {
		fatal(t, os.WriteFile(filepath.Join(state, name), []byte(content), 0o600))
	}
	out, err := exec.Command("swtpm_setup", "--tpm2", "--tpmstate", state, "--config", filepath.Join(state, "setup.conf"),
		"--create-ek-cert", "--create-platform-cert", "--lock-nvram", "--not-overwrite", "--write-ek-cert-files",
		state).CombinedOutput()
	if err != nil {
		t.Fatalf("swtpm_setup: %v\n%s", err, out)
	}
	s := &TPM{t: t, state: state, authority: keep(), Socket: filepath.Join(state, "tpm")}
	s.start()
	t.Cleanup(func() { s.stop() })
	return s
}

// authority returns the directory of the CA, which swtpm_setup creates if it is empty. Its keys need most of the time
// of a TPM's creation, so they stay in the user's cache. Keep moves a new CA there and returns where it is.
func authority(t testing.TB) (dir string, keep func() string) {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil { // there is no home directory
		cache = t.TempDir()
	}
	cache = filepath.Join(cache, "mcs-attest")
	fatal(t, os.MkdirAll(cache, 0o755))
	kept := filepath.Join(cache, "swtpm-ca")
	if _, err := os.Stat(kept); err == nil {
		return kept, func() string { return kept }
	}
	dir, err = os.MkdirTemp(cache, "swtpm-ca-")
	fatal(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir, func() string {
		if os.Rename(dir, kept) == nil {
			return kept
		}
		return dir // another process was first
	}
}

// Clone returns another software TPM with a copy of the state: the same keys and counters. It restarts s.
func (s *TPM) Clone() *TPM {
	s.t.Helper()
	s.stop() // its state is on disk
	state, err := os.MkdirTemp("", "swtpm-")
	fatal(s.t, err)
	s.t.Cleanup(func() { _ = os.RemoveAll(state) })
	raw, err := os.ReadFile(filepath.Join(s.state, "tpm2-00.permall"))
	fatal(s.t, err)
	fatal(s.t, os.WriteFile(filepath.Join(state, "tpm2-00.permall"), raw, 0o600))
	s.start()
	c := &TPM{t: s.t, state: state, authority: s.authority, Socket: filepath.Join(state, "tpm")}
	c.start()
	s.t.Cleanup(func() { c.stop() })
	return c
}

func (s *TPM) start() {
	s.t.Helper()
	cmd := exec.Command("swtpm", "socket", "--tpm2", "--tpmstate", "dir="+s.state,
		"--server", "type=unixio,path="+s.Socket, "--flags", "not-need-init,startup-clear")
	cmd.Stderr = os.Stderr
	fatal(s.t, cmd.Start())
	s.stop = func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = os.Remove(s.Socket)
	}
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
		err := s.answers()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			s.t.Fatalf("swtpm does not answer: %v", err)
		}
	}
}

// answers sends TPM2_GetRandom. After the response the TPM has started and has stored its reset counter, also if the
// process is killed then.
func (s *TPM) answers() error {
	conn, err := net.Dial("unix", s.Socket)
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // everything was read
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		return err
	}
	if _, err := conn.Write([]byte{0x80, 1, 0, 0, 0, 12, 0, 0, 1, 0x7B, 0, 2}); err != nil {
		return err
	}
	_, err = io.ReadFull(conn, make([]byte, 10+2+2)) // header, size, two random bytes
	return err
}

// Reboot resets the TPM: PCRs are cleared, keys stay.
func (s *TPM) Reboot() {
	s.t.Helper()
	s.stop()
	s.start()
}

// SPKI returns the hash of a certified endorsement key, "rsa2048" or "secp384r1".
func (s *TPM) SPKI(key string) [32]byte {
	s.t.Helper()
	raw, err := os.ReadFile(filepath.Join(s.state, "ek-"+key+".crt"))
	fatal(s.t, err)
	if block, _ := pem.Decode(raw); block != nil {
		raw = block.Bytes
	}
	cert, err := x509.ParseCertificate(raw)
	fatal(s.t, err)
	return sha256.Sum256(cert.RawSubjectPublicKeyInfo)
}

// Dial connects to the TPM. The connection ends with the test, and with the next Dial, because
// swtpm serves one connection at a time. It implements go-tpm's transport.TPM.
func (s *TPM) Dial() *Conn {
	s.t.Helper()
	if s.last != nil {
		_ = s.last.Close()
	}
	conn, err := net.Dial("unix", s.Socket)
	fatal(s.t, err)
	s.t.Cleanup(func() { _ = conn.Close() })
	s.last = &Conn{conn}
	return s.last
}

// Conn is one connection to a TPM.
type Conn struct{ net.Conn }

// Send sends a command and returns the response.
func (c *Conn) Send(command []byte) ([]byte, error) {
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		return nil, err
	}
	if _, err := c.Write(command); err != nil {
		return nil, err
	}
	response := make([]byte, 10)
	if _, err := io.ReadFull(c, response); err != nil {
		return nil, err
	}
	size := binary.BigEndian.Uint32(response[2:6])
	if size < 10 || size > 1<<16 {
		return nil, fmt.Errorf("a response of %d bytes", size)
	}
	response = append(response, make([]byte, size-10)...)
	_, err := io.ReadFull(c, response[10:])
	return response, err
}

func fatal(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
