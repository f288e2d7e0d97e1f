// SPDX-License-Identifier: Apache-2.0

// Package freeport finds ports for servers of tests that open their own sockets.
package freeport

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
)

// The ports are below those that Linux gives to connections and to servers without a port, from 32768. So none of
// them takes the port before the server binds it.
const first, end = 12000, 22000

var (
	mu   sync.Mutex
	held []net.PacketConn
)

// Pick returns a TCP port of the loopback interface that is free, and that no process has picked which still runs.
func Pick() (int, error) {
	mu.Lock()
	defer mu.Unlock()
	for range 1000 {
		port := first + rand.IntN(end-first)
		address := fmt.Sprintf("127.0.0.1:%d", port)
		l, err := net.Listen("tcp", address)
		if err != nil {
			continue
		}
		// The UDP port of the same number, which no server needs, reserves it until this process ends.
		u, err := net.ListenPacket("udp", address)
		if err = errors.Join(err, l.Close()); err != nil {
			continue
		}
		held = append(held, u)
		return port, nil
	}
	return 0, errors.New("no free port")
}
