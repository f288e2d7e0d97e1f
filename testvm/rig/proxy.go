// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
)

// Proxy forwards TLS connections to a verifier, for any name.
type Proxy struct {
	URL string // for a guest
	// Connections is how many it has forwarded.
	Connections atomic.Int64
}

// NewProxy starts one on a free port.
func (r *Rig) NewProxy(to *Verifier) *Proxy {
	r.t.Helper()
	p := &Proxy{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if want := fmt.Sprintf("%s:%d", to.Host(), to.Port); req.Method != http.MethodConnect || req.Host != want {
			http.Error(w, "the proxy only connects to "+want, http.StatusForbidden)
			return
		}
		upstream, err := net.Dial("tcp", to.Addr())
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		defer upstream.Close()
		client, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			r.t.Logf("rig: proxy: %v", err)
			return
		}
		defer client.Close()
		if _, err := io.WriteString(client, "HTTP/1.1 200 OK\r\n\r\n"); err != nil {
			return // the client has gone
		}
		p.Connections.Add(1)
		go func() {
			_, _ = io.Copy(upstream, buffered) // ends with the connection
			_ = upstream.(*net.TCPConn).CloseWrite()
		}()
		_, _ = io.Copy(client, upstream)
	}))
	r.t.Cleanup(server.Close)
	p.URL = fmt.Sprintf("http://%s:%d", Host, server.Listener.Addr().(*net.TCPAddr).Port)
	return p
}

// Behind returns a pointer config with the proxy.
func (p *Proxy) Behind(pointer []byte) []byte {
	var config map[string]map[string]any
	if err := json.Unmarshal(pointer, &config); err != nil {
		panic(err) // init wrote it
	}
	config["ignition"]["proxy"] = map[string]string{"httpsProxy": p.URL}
	b, err := json.Marshal(config)
	if err != nil {
		panic(err) // it was decoded
	}
	return b
}
