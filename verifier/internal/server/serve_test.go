// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"time"
)

func TestRun_ABusyServerDoesNotDelayTheShutdownOfAnother(t *testing.T) {
	began, release := make(chan struct{}), make(chan struct{})
	g := &group{log: slog.New(slog.DiscardHandler)}
	serve := func(h http.HandlerFunc) string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		server := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute}
		g.add("serve", server, func() error { return server.Serve(l) })
		return l.Addr().String()
	}
	busy := serve(func(http.ResponseWriter, *http.Request) { close(began); <-release })
	nodes := serve(func(http.ResponseWriter, *http.Request) {})
	ctx, stop := context.WithCancel(t.Context())
	done, answered := make(chan error, 1), make(chan error, 1)
	go func() {
		done <- g.run(ctx, func(ctx context.Context) error { <-ctx.Done(); return nil })
	}()
	go func() {
		res, err := http.Get("http://" + busy)
		if err == nil {
			_, err = io.Copy(io.Discard, res.Body)
			_ = res.Body.Close()
		}
		answered <- err
	}()
	<-began
	stop()
	for end := time.Now().Add(shutdownGrace / 2); ; time.Sleep(10 * time.Millisecond) {
		c, err := net.Dial("tcp", nodes)
		if err != nil {
			break
		}
		_ = c.Close()
		if time.Now().After(end) {
			t.Error("it still accepts connections")
			break
		}
	}
	close(release)
	if err := <-answered; err != nil {
		t.Error(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}
