// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"io"
	"net"
	"path/filepath"
	"strings"
	"time"
)

func (n *Node) monitorSocket() string { return filepath.Join(n.dir, "monitor") }

// Plug connects a network that is Unplugged or Late.
func (n *Node) Plug() { n.monitor("set_link net on") }

// monitor gives QEMU one command and waits for its next prompt.
func (n *Node) monitor(command string) {
	n.r.t.Helper()
	var conn net.Conn
	var err error
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		if conn, err = net.Dial("unix", n.monitorSocket()); err == nil || time.Now().After(deadline) {
			break
		}
	}
	n.r.fatal(err, "QEMU's monitor")
	defer conn.Close()
	n.r.fatal(conn.SetDeadline(time.Now().Add(time.Minute)), "QEMU's monitor")
	n.prompt(conn)
	_, err = io.WriteString(conn, command+"\n")
	n.r.fatal(err, "QEMU's monitor")
	if output := n.prompt(conn); strings.Contains(output, "Error") || strings.Contains(output, "unknown command") {
		n.r.t.Fatalf("QEMU's monitor: %s: %s", command, output)
	}
}

func (n *Node) prompt(conn net.Conn) string {
	n.r.t.Helper()
	var output strings.Builder
	b := make([]byte, 1)
	for !strings.HasSuffix(output.String(), "(qemu) ") {
		_, err := conn.Read(b)
		n.r.fatal(err, "QEMU's monitor")
		output.WriteByte(b[0])
	}
	return output.String()
}
