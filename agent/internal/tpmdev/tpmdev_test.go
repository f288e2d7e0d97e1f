// SPDX-License-Identifier: Apache-2.0

package tpmdev

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/google/go-tpm/tpm2/transport"

	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2/attester"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2/attester/swtpmtest"
)

// fakeDevice behaves like a character device: it returns a whole response for each command.
func fakeDevice(t *testing.T, answer func(command []byte) []byte) *device {
	t.Helper()
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.SetNonblock(ends[0], true); err != nil {
		t.Fatal(err)
	}
	far := os.NewFile(uintptr(ends[1]), "far end")
	t.Cleanup(func() { _ = far.Close() })
	go func() {
		for command := make([]byte, maxResponse); ; {
			n, err := far.Read(command)
			if err != nil || n == 0 {
				return
			}
			if r := answer(command[:n]); r != nil {
				_, _ = far.Write(r)
			}
		}
	}()
	return &device{fd: ends[0], limit: commandTime}
}

func TestDevice(t *testing.T) {
	response := append(binary.BigEndian.AppendUint32([]byte{0x80, 1}, 14), 0, 0, 0, 0, 1, 2, 3, 4)
	d := fakeDevice(t, func([]byte) []byte {
		time.Sleep(20 * time.Millisecond)
		return response
	})
	for range 2 {
		got, err := d.Send([]byte("a command"))
		if err != nil || !bytes.Equal(got, response) {
			t.Errorf("have % x and %v", got, err)
		}
	}
	if err := errors.Join(d.Close(), d.Close()); err != nil {
		t.Error(err)
	}
	if _, err := d.Send([]byte("a command")); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("after closing: %v", err)
	}
}

// A TPM that hangs does not block the agent, and its late response is never used.
func TestDeviceThatHangs(t *testing.T) {
	d := fakeDevice(t, func([]byte) []byte { return nil })
	d.limit = 50 * time.Millisecond
	if _, err := d.Send([]byte("a command")); !errors.Is(err, ErrTimeout) {
		t.Errorf("error %v", err)
	}
	if _, err := d.Send([]byte("another")); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("afterwards: %v", err)
	}
}

// The kernel holds a lock while the TPM executes a command, and poll and close wait for it. Here a full
// socket in blocking mode stands for that.
func TestDevice_CommandEndsWhileTheKernelBlocks(t *testing.T) {
	d := fakeDevice(t, func([]byte) []byte {
		<-t.Context().Done()
		return nil
	})
	if err := unix.SetsockoptInt(d.fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 4096); err != nil {
		t.Fatal(err)
	}
	var err error
	for err == nil {
		_, err = unix.Write(d.fd, []byte("a command"))
	}
	if err := unix.SetNonblock(d.fd, false); err != nil {
		t.Fatal(err)
	}
	d.limit = 50 * time.Millisecond
	ended := make(chan error, 1)
	go func() {
		_, err := d.Send([]byte("a command"))
		ended <- errors.Join(err, d.Close())
	}()
	select {
	case err := <-ended:
		if !errors.Is(err, ErrTimeout) {
			t.Errorf("error %v", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("the command did not end")
	}
}

func TestSocket(t *testing.T) {
	tpm, err := Open(swtpmtest.Start(t, "sha256").Socket)
	if err != nil {
		t.Fatal(err)
	}
	banks, err := attester.Banks(tpm)
	if err != nil || len(banks) != 1 {
		t.Errorf("banks %v, %v", banks, err)
	}
	if err := tpm.Close(); err != nil {
		t.Error(err)
	}
}

func TestAbsent(t *testing.T) {
	if _, err := Open(filepath.Join(t.TempDir(), "tpmrm0")); !errors.Is(err, ErrAbsent) {
		t.Errorf("error %v", err)
	}
}

var _ transport.TPMCloser = (*device)(nil)
