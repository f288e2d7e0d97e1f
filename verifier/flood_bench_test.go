// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// BenchmarkFlood is what 30 honest machines need, one after another, to attest and
// to fetch their config: in quiet, and under 400 hostile requests a second from
// their own address. "x-quiet" is the ratio; "failed" must be 0.
func BenchmarkFlood(b *testing.B) {
	const machines = 30
	v := newVerifierFor(b, ordinary(b, ""))
	var honest []*loadNode
	for i := range machines {
		honest = append(honest, softMachine(b, v, fmt.Sprintf("m%d", i)))
	}
	quiet := 0.0
	for _, name := range []string{"quiet", "flood"} {
		b.Run(name, func(b *testing.B) {
			failed, sent := 0, 0
			if name == "flood" {
				stop := flood(b, v, 400)
				began := time.Now()
				time.Sleep(time.Second) // the flood's own start is no part of it
				defer func() {
					sent = stop()
					b.ReportMetric(float64(sent)/time.Since(began).Seconds(), "hostile/s")
				}()
			}
			for b.Loop() {
				v.advance(later)
				for _, n := range honest {
					if err := provision(b.Context(), v, n); err != nil {
						b.Log(err)
						failed++
					}
				}
			}
			took := float64(b.Elapsed()) / float64(b.N)
			if name == "quiet" {
				quiet = took
			} else if quiet > 0 {
				b.ReportMetric(took/quiet, "x-quiet")
			}
			b.ReportMetric(float64(failed)/float64(b.N), "failed/op")
		})
	}
}

// BenchmarkStalledConnections is the memory of the verifier's process while 4096
// connections stall, each in the same place: "MB" resident, and the most there was.
func BenchmarkStalledConnections(b *testing.B) {
	const connections = 4096
	program := filepath.Join(b.TempDir(), "verifier")
	if out, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		b.Fatalf("build: %v\n%s", err, out)
	}
	attest := fmt.Sprintf("POST %sAttest HTTP/1.1\r\nHost: x\r\nContent-Type: application/proto\r\n"+
		"Content-Length: %d\r\n\r\n", apiPath, 500<<10)
	for _, c := range []struct {
		name   string
		tls    bool
		send   string
		answer bool
	}{
		{"silent", false, "", false},
		{"handshake", false, "\x16\x03\x01\x3e\x80\x01\x00\xfd\xe8" + strings.Repeat("\x00", 8000), false},
		{"handshake-only", true, "", false},
		{"headers", true, "GET / HTTP/1.1\r\nHost: x\r\nX: " + strings.Repeat("x", 11000), false},
		{"idle", true, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", true},
		{"small-bodies", true, attest + "x", false},
		{"bodies", true, attest + strings.Repeat("x", 499<<10), false},
	} {
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				v := newVerifierFor(b, ordinary(b, ""))
				v.stop()
				addr := freeAddress(b)
				cmd := exec.Command(program, "serve", "--config", filepath.Join(v.dir, "mcs-attest.yaml"),
					"--listen", addr, "--health-listen", freeAddress(b), "--metrics-listen", freeAddress(b))
				if err := cmd.Start(); err != nil {
					b.Fatal(err)
				}
				eventually(b, func() bool {
					conn, err := net.Dial("tcp", addr)
					if err == nil {
						_ = conn.Close()
					}
					return err == nil
				}, func() string { return "it does not listen" })
				var mu sync.Mutex
				var held []net.Conn
				var wg sync.WaitGroup
				slots := make(chan struct{}, 64)
				for i := range connections {
					wg.Go(func() {
						slots <- struct{}{}
						defer func() { <-slots }()
						conn, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, byte(1+i%4))}}).Dial("tcp", addr)
						if err != nil {
							return
						}
						if c.tls {
							conn = tls.Client(conn, &tls.Config{RootCAs: v.roots, ServerName: "mcs.test"})
						}
						mu.Lock()
						held = append(held, conn)
						mu.Unlock()
						_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
						if t, ok := conn.(*tls.Conn); ok {
							_ = t.Handshake()
						}
						_, _ = io.WriteString(conn, c.send)
						if c.answer {
							_, _ = conn.Read(make([]byte, 512))
						}
					})
				}
				wg.Wait()
				now, most := memoryOf(b, cmd.Process.Pid)
				b.ReportMetric(now, "MB")
				b.ReportMetric(most, "MB-most")
				for _, conn := range held {
					_ = conn.Close()
				}
				_ = cmd.Process.Kill()
				_ = cmd.Wait()
			}
		})
	}
}

// memoryOf is the memory of a process in MB, and the most that it has had.
func memoryOf(b *testing.B, pid int) (now, most float64) {
	b.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(string(raw)) {
		var kb float64
		if n, _ := fmt.Sscanf(line, "VmRSS: %f kB", &kb); n == 1 {
			now = kb / 1024
		}
		if n, _ := fmt.Sscanf(line, "VmHWM: %f kB", &kb); n == 1 {
			most = kb / 1024
		}
	}
	return now, most
}
