// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// HAProxy is a load balancer in TCP mode, like the one in front of a control plane. It checks every
// backend five times a second. It sends a new connection to the backend with the fewest
// connections, or to another one if it cannot connect.
type HAProxy struct {
	// Addr is its address, 127.0.0.1:PORT.
	Addr string

	c    *Cluster
	dir  string
	port *port
	o    HAProxyOptions
	p    *process
}

// HAProxyOptions define the backends of a load balancer.
type HAProxyOptions struct {
	// Backends are host:port each.
	Backends []string
	// Health is a path to request over HTTPS, such as "/healthz". Empty means that a connection is
	// enough.
	Health string
}

// HAProxy starts a load balancer for these backends and returns its address.
func (c *Cluster) HAProxy(t TB, backends []string) (addr string) {
	t.Helper()
	return c.NewHAProxy(t, HAProxyOptions{Backends: backends}).Addr
}

// NewHAProxy starts a load balancer. It ends with the test.
func (c *Cluster) NewHAProxy(t TB, o HAProxyOptions) *HAProxy {
	t.Helper()
	dir, err := os.MkdirTemp(c.dir, "haproxy-")
	if err != nil {
		t.Fatalf("haproxy: %v", err)
	}
	h := &HAProxy{c: c, dir: dir}
	if h.port, err = holdPort(); err != nil {
		t.Fatalf("haproxy: %v", err)
	}
	t.Cleanup(func() {
		h.p.kill()
		h.port.release()
	})
	h.Addr = fmt.Sprintf("127.0.0.1:%d", h.port.number)
	h.Reload(t, o)
	return h
}

// Reload replaces the configuration. Open connections stay open, and no new connection is rejected
// in the meantime.
func (h *HAProxy) Reload(t TB, o HAProxyOptions) {
	t.Helper()
	h.o = o
	program, err := lookPath("haproxy")
	if err != nil {
		t.Fatalf("haproxy: %v", err)
	}
	file := filepath.Join(h.dir, "haproxy.cfg")
	if err := os.WriteFile(file, h.config(), 0o600); err != nil {
		t.Fatalf("haproxy: %v", err)
	}
	args := []string{"-db", "-f", file}
	if h.p != nil {
		args = append(args, "-sf", fmt.Sprint(h.p.cmd.Process.Pid))
	}
	old := h.p
	if h.p, err = start("haproxy", h.c.path("haproxy.log"), h.dir, program, args...); err != nil {
		t.Fatalf("haproxy: %v", err)
	}
	if old != nil {
		// It ends after its last connection, or at the latest with the test.
		t.Cleanup(old.kill)
	}
	pid := fmt.Sprintf("Pid: %d\n", h.p.cmd.Process.Pid)
	err = h.p.ready(func() error {
		info, err := h.ask("show info")
		if err == nil && !strings.Contains(info, pid) {
			err = fmt.Errorf("the earlier one still answers")
		}
		return err
	})
	if err != nil {
		t.Fatalf("%v", err)
	}
}

func (h *HAProxy) socket() string { return filepath.Join(h.dir, "s") }

func (h *HAProxy) config() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, `global
  log stdout format raw local0 notice
  stats socket %s level admin
  maxconn 4000
defaults
  mode tcp
  log global
  timeout connect 2s
  timeout client 10m
  timeout server 10m
  timeout check 2s
  retries 3
  option redispatch 1
  balance leastconn
listen nodes
  bind 127.0.0.1:%d
  default-server inter 200ms fall 2 rise 1 on-marked-down shutdown-sessions
`, h.socket(), h.port.number)
	check := "check"
	if h.o.Health != "" {
		fmt.Fprintf(&b, "  option httpchk GET %s\n", h.o.Health)
		// A load balancer checks only that the backend answers, not its certificate.
		check = "check check-ssl verify none"
	}
	for i, backend := range h.o.Backends {
		fmt.Fprintf(&b, "  server b%d %s %s\n", i, backend, check)
	}
	return b.Bytes()
}

// ask sends a command to its socket.
func (h *HAProxy) ask(command string) (string, error) {
	conn, err := net.DialTimeout("unix", h.socket(), 5*time.Second)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return "", err
	}
	if _, err := fmt.Fprintln(conn, command); err != nil {
		return "", err
	}
	b, err := io.ReadAll(conn)
	return string(b), err
}

// Up returns the backends that currently receive connections.
func (h *HAProxy) Up(t TB) []string {
	t.Helper()
	backends, err := h.up()
	if err != nil {
		t.Fatalf("haproxy: %v", err)
	}
	return backends
}

func (h *HAProxy) up() (backends []string, err error) {
	out, err := h.ask("show stat -1 4 -1")
	if err != nil {
		return nil, err
	}
	lines := strings.Split(strings.TrimPrefix(out, "# "), "\n")
	column := map[string]int{}
	for i, name := range strings.Split(lines[0], ",") {
		column[name] = i
	}
	for _, line := range lines[1:] {
		field := strings.Split(line, ",")
		if len(field) < len(column)-1 || !strings.HasPrefix(field[column["status"]], "UP") {
			continue
		}
		var i int
		if _, err := fmt.Sscanf(field[column["svname"]], "b%d", &i); err == nil {
			backends = append(backends, h.o.Backends[i])
		}
	}
	return backends, nil
}

// WaitUp waits until exactly n backends receive connections.
func (h *HAProxy) WaitUp(t TB, n int) {
	t.Helper()
	err := h.p.ready(func() error {
		up, err := h.up()
		if err == nil && len(up) != n {
			err = fmt.Errorf("%d of %d backends are up: %v", len(up), len(h.o.Backends), up)
		}
		return err
	})
	if err != nil {
		t.Fatalf("%v", err)
	}
}
