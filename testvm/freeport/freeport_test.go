// SPDX-License-Identifier: Apache-2.0

package freeport_test

import (
	"fmt"
	"net"
	"testing"

	"github.com/mcs-attest/mcs-attest/testvm/freeport"
)

func TestPick_NamesAFreePortOnce(t *testing.T) {
	seen := map[int]bool{}
	for range 100 {
		port, err := freeport.Pick()
		if err != nil {
			t.Fatal(err)
		}
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil || seen[port] || port >= 32768 {
			t.Fatalf("port %d, picked before: %v: %v", port, seen[port], err)
		}
		defer l.Close()
		seen[port] = true
	}
}
