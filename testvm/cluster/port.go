// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// port is a port of the loopback interface that is reserved for one server: a socket that is bound
// and never listens. A server that shares ports (SO_REUSEPORT) can bind the port repeatedly, and no
// other process receives it in the meantime. While no server listens, connections are rejected.
type port struct {
	number int
	fd     int
}

func holdPort() (*port, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("port: %w", err)
	}
	fail := func(err error) (*port, error) {
		unix.Close(fd)
		return nil, fmt.Errorf("port: %w", err)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err != nil {
		return fail(err)
	}
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return fail(err)
	}
	addr, err := unix.Getsockname(fd)
	if err != nil {
		return fail(err)
	}
	return &port{number: addr.(*unix.SockaddrInet4).Port, fd: fd}, nil
}

func (p *port) release() { unix.Close(p.fd) }
