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
	mu    sync.Mutex
	given = map[int]bool{}
)

// Pick returns a free port of the loopback interface that this process has not picked before.
func Pick() (int, error) {
	mu.Lock()
	defer mu.Unlock()
	for range 1000 {
		port := first + rand.IntN(end-first)
		if given[port] {
			continue
		}
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			continue
		}
		given[port] = true
		return port, l.Close()
	}
	return 0, errors.New("no free port")
}
