// SPDX-License-Identifier: Apache-2.0

// Package tpmdev opens a TPM: the kernel's character device, or the Unix socket of a software TPM.
//
// The device in go-tpm waits for a response without limit. Here every command has a deadline. When
// a deadline has passed, the device is closed, because its late response could be mistaken for the
// response to the next command.
//
// The kernel holds a lock of the device while the TPM executes a command. Even in non-blocking mode,
// poll and close wait for it, and no signal ends that wait. So these calls run in a goroutine, which
// the deadline abandons. The caller continues and can report the error. The process itself exits when
// the kernel's driver gives up, which normally takes at most five minutes.
package tpmdev

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"time"

	"github.com/google/go-tpm/tpm2/transport"
	"golang.org/x/sys/unix"
)

const (
	// commandTime limits one command. The slowest known one, the creation of an RSA key on an old
	// discrete TPM, takes up to a minute.
	commandTime = 150 * time.Second
	// closeTime limits a close, in which the kernel may wait for another process's command.
	closeTime = 10 * time.Second
	// maxResponse is at least TPM_PT_MAX_RESPONSE_SIZE of every known TPM.
	maxResponse = 8192
	headerSize  = 10
)

// ErrTimeout reports that the TPM did not execute a command in time.
var ErrTimeout = errors.New("the TPM did not answer")

// ErrAbsent reports that the machine has no TPM.
var ErrAbsent = errors.New("the machine has no TPM 2.0")

// ErrFailed reports that the device returned an error. The TPM itself did not answer.
var ErrFailed = errors.New("the TPM's device failed")

// Open opens the TPM at path.
func Open(path string) (transport.TPMCloser, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s does not exist", ErrAbsent, path)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFailed, err)
	}
	if info.Mode().Type() == fs.ModeSocket {
		conn, err := net.Dial("unix", path)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrFailed, err)
		}
		return &socket{conn}, nil
	}
	// In non-blocking mode the kernel executes the command after write has returned.
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("%w: opening %s: %w", ErrFailed, path, err)
	}
	return &device{fd: fd, limit: commandTime}, nil
}

// device is a character device. After Close its fd is -1.
type device struct {
	fd    int
	limit time.Duration
}

func (d *device) Send(command []byte) ([]byte, error) {
	if d.fd < 0 {
		return nil, fmt.Errorf("%w: %w", ErrFailed, fs.ErrClosed)
	}
	type result struct {
		response []byte
		err      error
	}
	fd, limit, done := d.fd, d.limit, make(chan result, 1)
	go func() {
		response, err := exchange(fd, command, limit)
		done <- result{response, err}
	}()
	select {
	case r := <-done:
		if !errors.Is(r.err, ErrTimeout) {
			return r.response, r.err
		}
		done <- r
	case <-time.After(limit):
	}
	// Not before exchange has ended: the number could then be that of another file.
	d.fd = -1
	go func() {
		<-done
		_ = unix.Close(fd)
	}()
	return nil, fmt.Errorf("%w within %v", ErrTimeout, limit)
}

// exchange sends a command and waits for the response until the limit has passed, or longer if the
// kernel blocks.
func exchange(fd int, command []byte, limit time.Duration) ([]byte, error) {
	deadline := time.Now().Add(limit)
	n, err := ignoringInterrupts(func() (int, error) { return unix.Write(fd, command) })
	if err != nil || n != len(command) {
		return nil, fmt.Errorf("%w: sending a command: %w", ErrFailed, errors.Join(err, short(n, len(command))))
	}
	for {
		left := time.Until(deadline)
		if left <= 0 {
			return nil, ErrTimeout
		}
		ready, err := ignoringInterrupts(func() (int, error) {
			return unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(left.Milliseconds())+1)
		})
		if err != nil {
			return nil, fmt.Errorf("%w: waiting for a response: %w", ErrFailed, err)
		}
		if ready == 0 {
			continue
		}
		response := make([]byte, maxResponse)
		n, err := ignoringInterrupts(func() (int, error) { return unix.Read(fd, response) })
		if errors.Is(err, unix.EAGAIN) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("%w: reading a response: %w", ErrFailed, err)
		}
		if n < headerSize {
			return nil, fmt.Errorf("%w: a response has %d bytes", ErrFailed, n)
		}
		return response[:n], nil
	}
}

func (d *device) Close() error {
	if d.fd < 0 {
		return nil
	}
	fd, done := d.fd, make(chan error, 1)
	d.fd = -1
	go func() { done <- unix.Close(fd) }()
	select {
	case err := <-done:
		return err
	case <-time.After(closeTime):
		return fmt.Errorf("closing the TPM: it did not end within %v", closeTime)
	}
}

func ignoringInterrupts(f func() (int, error)) (int, error) {
	for {
		n, err := f()
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

func short(n, want int) error {
	if n != want {
		return io.ErrShortWrite
	}
	return nil
}

// socket is the command channel of a software TPM, with unframed commands and responses.
type socket struct{ net.Conn }

func (s *socket) Send(command []byte) ([]byte, error) {
	if err := s.SetDeadline(time.Now().Add(commandTime)); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFailed, err)
	}
	if _, err := s.Write(command); err != nil {
		return nil, fmt.Errorf("%w: sending a command: %w", ErrFailed, err)
	}
	response := make([]byte, headerSize, maxResponse)
	if _, err := io.ReadFull(s, response); err != nil {
		return nil, fmt.Errorf("%w: reading a response: %w", ErrFailed, err)
	}
	size := binary.BigEndian.Uint32(response[2:6])
	if size < headerSize || size > maxResponse {
		return nil, fmt.Errorf("%w: it announced a response of %d bytes", ErrFailed, size)
	}
	response = response[:size]
	if _, err := io.ReadFull(s, response[headerSize:]); err != nil {
		return nil, fmt.Errorf("%w: reading a response: %w", ErrFailed, err)
	}
	return response, nil
}
