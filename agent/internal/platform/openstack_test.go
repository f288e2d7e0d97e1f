// SPDX-License-Identifier: Apache-2.0

package platform_test

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcs-attest/mcs-attest/agent/internal/platform"
	"github.com/mcs-attest/mcs-attest/agent/internal/volume"
	"github.com/mcs-attest/mcs-attest/agent/internal/volume/volumetest"
	"github.com/mcs-attest/mcs-attest/pkg/pointer"
)

func TestOpenStack(t *testing.T) {
	const file = "openstack/latest/user_data"
	status := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
	}
	silent := func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	service := func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/"+file {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		_, _ = w.Write([]byte("from the service"))
	}
	drive := map[string]string{file: "from the drive"}
	for _, c := range []struct {
		name    string
		wait    time.Duration
		service http.HandlerFunc
		drive   map[string]string // nil: there is none
		want    outcome
	}{
		{"only the service", long, service, nil, outcome{data: "from the service"}},
		{"the drive, and a service that never answers", long, silent, drive, outcome{data: "from the drive"}},
		{"the drive, and a service without user data", long, status(404), drive, outcome{data: "from the drive"}},
		{"the drive, and a service that denies access", long, status(403), drive, outcome{data: "from the drive"}},
		{"a drive without user data, and the service", long, service,
			map[string]string{"openstack/latest/meta_data.json": "{}"}, outcome{data: "from the service"}},
		{"neither has user data", long, status(404), map[string]string{"openstack/latest/meta_data.json": "{}"},
			outcome{kind: platform.ErrNone}},
		{"no drive, and the service has none", short, status(404), nil, outcome{kind: platform.ErrNone}},
		{"no drive, and a service that never answers", short, silent, nil,
			outcome{text: "OpenStack's metadata service: fetching from"}},
		{"no drive, and a service that denies access", short, status(403), nil, outcome{text: "HTTP status 403"}},
		{"no drive, and a service that fails", short, status(500), nil, outcome{text: "HTTP status 500"}},
		{"no drive, and the service sends too much", 2 * time.Second, func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write(make([]byte, pointer.MaxSize+1))
		}, nil, outcome{text: "more than 16777216 bytes"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := httptest.NewServer(c.service)
			t.Cleanup(s.Close)
			m := machine(t, "openstack", c.wait)
			m.Paths.Metadata = s.URL
			if c.drive != nil {
				volumetest.At(t, filepath.Join(m.Paths.Disks, "config-2"), volume.ISO9660, c.drive)
			}
			c.want.check(t, m)
		})
	}
}

func TestOpenStackServiceThatComesUpLate(t *testing.T) {
	calls := 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if calls++; calls < 3 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte("from the service"))
	}))
	t.Cleanup(s.Close)
	m := machine(t, "openstack", long)
	m.Paths.Metadata = s.URL
	outcome{data: "from the service"}.check(t, m)
}

// A source that appears while the others have no answer is asked, too.
func TestFirst_AsksASourceThatAppearsLate(t *testing.T) {
	type source = func(context.Context) (platform.UserData, error)
	silent := func(ctx context.Context) (platform.UserData, error) {
		<-ctx.Done()
		return platform.UserData{}, ctx.Err()
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		calls := 0
		data, err := platform.First(ctx, platform.Machine{}, silent, func() []source {
			if calls++; calls != 3 {
				return nil
			}
			return []source{func(context.Context) (platform.UserData, error) {
				return platform.UserData{Raw: []byte("late")}, nil
			}}
		})
		if err != nil || string(data.Raw) != "late" {
			t.Errorf("%q and error %v", data.Raw, err)
		}
	})
}

// The service also has a link-local address on each link, which may come up late. A configured base replaces all
// addresses.
func TestOpenStackAddresses(t *testing.T) {
	var up []string
	links := func() []string { return up }
	all := platform.OpenStackHosts("http://169.254.169.254", links)
	one := platform.OpenStackHosts("http://127.0.0.1:8080", links)
	for _, c := range []struct {
		up        []string
		want, set []string // hosts to dial
	}{
		{nil, []string{"169.254.169.254"}, []string{"127.0.0.1"}},
		{[]string{"eth0"}, []string{"fe80::a9fe:a9fe%eth0"}, nil},
		{[]string{"eth0", "en p1"}, []string{"fe80::a9fe:a9fe%en p1"}, nil},
		{[]string{"en p1"}, nil, nil},
	} {
		up = c.up
		if got := all(); !slices.Equal(got, c.want) {
			t.Errorf("with links %q: hosts %q, not %q", c.up, got, c.want)
		}
		if got := one(); !slices.Equal(got, c.set) {
			t.Errorf("with links %q and a configured base: hosts %q, not %q", c.up, got, c.set)
		}
	}
	interfaces, err := net.Interfaces()
	ok(t, err)
	for _, name := range platform.LinksWithIPv6() {
		for _, l := range interfaces {
			if l.Name == name && l.Flags&net.FlagLoopback != 0 {
				t.Errorf("%s is a loopback", name)
			}
		}
	}
}
