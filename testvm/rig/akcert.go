// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"crypto"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/google/go-tpm/tpm2"

	"github.com/mcs-attest/mcs-attest/testvm/children"
)

// Where Azure's virtual TPMs have an attestation key and its certificate.
const (
	azureAK     = tpm2.TPMHandle(0x81000003)
	azureAKCert = tpm2.TPMHandle(0x01C101D0)
)

// CertifyAsAzure gives the TPM what Azure's virtual TPMs have from the start: a persistent
// attestation key, and its certificate in NV, which issue creates.
func (t *TPM) CertifyAsAzure(issue func(crypto.PublicKey) (der []byte, err error)) {
	t.r.t.Helper()
	socket := filepath.Join(t.dir, "maker")
	cmd := exec.Command("swtpm", "socket", "--tpm2", "--tpmstate", "dir="+t.dir,
		"--server", "type=unixio,path="+socket, "--flags", "not-need-init,startup-clear", "--terminate")
	t.r.fatal(children.Start(cmd), "swtpm")
	conn, err := dial(socket)
	t.r.fatal(err, "swtpm")
	t.r.fatal(certifyAsAzure(commands{conn}, issue), "certified AK")
	_, err = tpm2.Shutdown{ShutdownType: tpm2.TPMSUClear}.Execute(commands{conn})
	t.r.fatal(err, "swtpm")
	t.r.fatal(conn.Close(), "swtpm") // this ends swtpm
	t.r.fatal(cmd.Wait(), "swtpm")
}

func dial(socket string) (conn net.Conn, err error) {
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if conn, err = net.Dial("unix", socket); err == nil {
			return conn, nil
		}
	}
	return nil, err
}

// commands sends unframed TPM commands over a socket.
type commands struct{ net.Conn }

// Send sends a command and reads its response, whose header has the length.
func (c commands) Send(command []byte) ([]byte, error) {
	if _, err := c.Write(command); err != nil {
		return nil, err
	}
	answer := make([]byte, 10)
	if _, err := io.ReadFull(c, answer); err != nil {
		return nil, err
	}
	length := binary.BigEndian.Uint32(answer[2:])
	if length < 10 || length > 1<<16 {
		return nil, fmt.Errorf("the TPM's answer has %d bytes", length)
	}
	answer = append(answer, make([]byte, length-10)...)
	_, err := io.ReadFull(c, answer[10:])
	return answer, err
}

func certifyAsAzure(tpm commands, issue func(crypto.PublicKey) ([]byte, error)) error {
	owner := tpm2.AuthHandle{Handle: tpm2.TPMRHOwner, Auth: tpm2.PasswordAuth(nil)}
	made, err := tpm2.CreatePrimary{PrimaryHandle: tpm2.TPMRHEndorsement, InPublic: tpm2.New2B(tpm2.TPMTPublic{
		Type: tpm2.TPMAlgRSA, NameAlg: tpm2.TPMAlgSHA256,
		ObjectAttributes: tpm2.TPMAObject{
			FixedTPM: true, FixedParent: true, SensitiveDataOrigin: true, UserWithAuth: true, NoDA: true, Restricted: true,
			SignEncrypt: true,
		},
		Parameters: tpm2.NewTPMUPublicParms(tpm2.TPMAlgRSA, &tpm2.TPMSRSAParms{
			Scheme: tpm2.TPMTRSAScheme{
				Scheme:  tpm2.TPMAlgRSASSA,
				Details: tpm2.NewTPMUAsymScheme(tpm2.TPMAlgRSASSA, &tpm2.TPMSSigSchemeRSASSA{HashAlg: tpm2.TPMAlgSHA256}),
			},
			KeyBits: 2048,
		}),
		// This key is not created from any default template.
		Unique: tpm2.NewTPMUPublicID(tpm2.TPMAlgRSA, &tpm2.TPM2BPublicKeyRSA{Buffer: []byte("the host's")}),
	})}.Execute(tpm)
	if err != nil {
		return err
	}
	if _, err := (tpm2.EvictControl{
		Auth: owner, ObjectHandle: &tpm2.NamedHandle{Handle: made.ObjectHandle, Name: made.Name}, PersistentHandle: azureAK,
	}).Execute(tpm); err != nil {
		return err
	}
	if _, err := (tpm2.FlushContext{FlushHandle: made.ObjectHandle}).Execute(tpm); err != nil {
		return err
	}
	public, err := made.OutPublic.Contents()
	if err != nil {
		return err
	}
	key, err := tpm2.Pub(*public)
	if err != nil {
		return err
	}
	der, err := issue(key)
	if err != nil {
		return err
	}
	index := tpm2.TPMSNVPublic{
		NVIndex: azureAKCert, NameAlg: tpm2.TPMAlgSHA256, DataSize: uint16(len(der)),
		Attributes: tpm2.TPMANV{OwnerWrite: true, OwnerRead: true, AuthRead: true, NoDA: true},
	}
	if _, err := (tpm2.NVDefineSpace{AuthHandle: owner, PublicInfo: tpm2.New2B(index)}).Execute(tpm); err != nil {
		return err
	}
	name, err := tpm2.NVName(&index)
	if err != nil {
		return err
	}
	const chunk = 512
	for at := 0; at < len(der); at += chunk {
		if _, err := (tpm2.NVWrite{
			AuthHandle: owner, NVIndex: tpm2.NamedHandle{Handle: azureAKCert, Name: *name},
			Data: tpm2.TPM2BMaxNVBuffer{Buffer: der[at:min(at+chunk, len(der))]}, Offset: uint16(at),
		}).Execute(tpm); err != nil {
			return err
		}
		// The first write changes the attributes of the index, and therefore its name.
		index.Attributes.Written = true
		if name, err = tpm2.NVName(&index); err != nil {
			return err
		}
	}
	return nil
}
