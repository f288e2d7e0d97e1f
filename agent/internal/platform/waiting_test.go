// SPDX-License-Identifier: Apache-2.0

package platform_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/agent/internal/metadata"
	"github.com/mcs-attest/mcs-attest/agent/internal/platform"
	"github.com/mcs-attest/mcs-attest/agent/internal/volume"
	"github.com/mcs-attest/mcs-attest/agent/internal/volume/volumetest"
)

// recorder collects the reasons that Waiting receives.
type recorder struct {
	mu      sync.Mutex
	reasons []string
	first   func()
}

func (c *recorder) waiting(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reasons = append(c.reasons, err.Error()); len(c.reasons) == 1 && c.first != nil {
		c.first()
	}
}

func (c *recorder) has(text string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.ContainsFunc(c.reasons, func(r string) bool { return strings.Contains(r, text) })
}

// unhurried sets the agent's retries, without a limit, with shorter pauses.
func unhurried(t *testing.T, try time.Duration) {
	p := metadata.Endless
	p.Try, p.Pause = try, time.Millisecond
	platform.SetPatience(t, p)
}

// A source that exists is read without a report. A source that does not exist yet is waited for,
// and the reason is reported on the first attempt.
func TestSourcesThatComeLate(t *testing.T) {
	unhurried(t, 30*time.Second)
	for _, c := range []struct{ name, id, reported string }{
		{"AWS", "aws", "AWS metadata service, asked for the user data: "},
		{"Google Cloud", "gcp", "Google Cloud metadata service, asked for the attribute user-data: "},
		{"Azure", "azure", "Azure metadata service, asked for the user data: "},
		{"OpenStack", "openstack", "OpenStack's metadata service: fetching from"},
		{"the kernel argument", "metal", "kernel argument ignition.config.url: fetching from"},
	} {
		for _, status := range []int{http.StatusOK, http.StatusServiceUnavailable, http.StatusTooManyRequests,
			http.StatusRequestTimeout, http.StatusTooEarly} {
			t.Run(fmt.Sprintf("%s, status %d", c.name, status), func(t *testing.T) {
				t.Parallel()
				var asked atomic.Int32
				s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("Metadata-Flavor", "Google")
					w.Header().Set("X-Aws-Ec2-Metadata-Token-Ttl-Seconds", "300")
					switch {
					case status != http.StatusOK && asked.Add(1) <= 2:
						w.WriteHeader(status)
					case strings.HasPrefix(r.URL.Path, "/metadata/"):
						_, _ = w.Write([]byte("dXNlciBkYXRh"))
					default:
						_, _ = w.Write([]byte("user data"))
					}
				}))
				t.Cleanup(s.Close)
				m := machine(t, c.id, 0) // no limit, as in the agent
				m.Paths.Metadata = s.URL
				if c.id == "metal" {
					m.Cmdline = platform.Cmdline{"ignition.config.url=" + s.URL}
				}
				var why recorder
				m.Waiting = why.waiting
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
				defer cancel()
				data, err := m.Find(ctx)
				if err != nil || string(data.Raw) != "user data" {
					t.Errorf("%q and error %v", data.Raw, err)
				}
				problem := ""
				if status != http.StatusOK {
					problem = fmt.Sprintf("HTTP status %d", status)
				}
				if reported := slices.ContainsFunc(why.reasons, func(r string) bool {
					return strings.HasPrefix(r, c.reported) && strings.Contains(r, problem)
				}); reported != (problem != "") {
					t.Errorf("reported %q", why.reasons)
				}
			})
		}
	}
}

// A drive that does not exist yet is waited for, too.
func TestMissingDrivesAreRetried(t *testing.T) {
	imds := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})) // no user data
	t.Cleanup(imds.Close)
	for id, want := range map[string]string{
		"nutanix": "there is no config drive with label config-2", "powervs": "there is no config drive with label config-2",
		"kubevirt": "there is no config drive with label config-2 or cidata",
		"azure":    "there is no CD with Azure's custom data (there is no CD-ROM drive)",
	} {
		t.Run(id, func(t *testing.T) {
			t.Parallel()
			m := machine(t, id, 0)
			m.Paths.Metadata = imds.URL
			why := recorder{first: func() {
				volumetest.At(t, filepath.Join(m.Paths.Disks, "config-2"), volume.ISO9660,
					map[string]string{"openstack/latest/user_data": "late"})
				volumetest.At(t, filepath.Join(m.Paths.Drives, "sr0"), volume.UDF,
					map[string]string{"ovf-env.xml": "", "CustomData.bin": "late"})
			}}
			m.Waiting = why.waiting
			outcome{data: "late"}.check(t, m)
			if !why.has(want) {
				t.Errorf("reported %q", why.reasons)
			}
		})
	}
}

// A source that never appears is waited for until the context ends. The first attempt reports the
// reason.
func TestMissingSourcesAreRetriedIndefinitely(t *testing.T) {
	unhurried(t, 100*time.Millisecond)
	silent := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	t.Cleanup(silent.Close)
	refusing := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusForbidden)
	}))
	t.Cleanup(refusing.Close)
	for _, c := range []struct{ name, id, metadata, cmdline, want string }{
		{"AWS with lost tokens", "aws", silent.URL, "", "the PUT for an IMDSv2 token was not answered in time"},
		{"Google Cloud", "gcp", silent.URL, "", "no answer in time"},
		{"Azure", "azure", silent.URL, "", "no answer in time"},
		{"OpenStack, with only a service that denies access", "openstack", refusing.URL, "", "HTTP status 403"},
		{"a URL without a listener", "metal", "", "ignition.config.url=http://127.0.0.1:1/", "connection refused"},
		{"a drive", "nutanix", "", "", "no config drive"},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		m := machine(t, c.id, 0)
		m.Cmdline = platform.Cmdline{c.cmdline}
		if c.metadata != "" {
			m.Paths.Metadata = c.metadata
		}
		why := &recorder{}
		m.Waiting = func(err error) {
			if why.waiting(err); why.has(c.want) {
				cancel()
			}
		}
		if data, err := m.Find(ctx); err == nil || errors.Is(err, platform.ErrNone) || ctx.Err() == nil {
			t.Errorf("%s: %q and error %v", c.name, data.Raw, err)
		}
		if t.Context().Err() != nil {
			t.Errorf("%s: reported %q", c.name, why.reasons)
		}
		cancel()
	}
}

// Final faults are not retried.
func TestFinalFaultsAreNotRetried(t *testing.T) {
	unhurried(t, 30*time.Second)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusForbidden)
	}))
	t.Cleanup(s.Close)
	for _, id := range []string{"aws", "gcp", "azure", "metal"} {
		m := machine(t, id, 0)
		m.Paths.Metadata = s.URL
		if id == "metal" {
			m.Cmdline = platform.Cmdline{"ignition.config.url=" + s.URL}
		}
		m.Waiting = func(err error) { t.Errorf("%s: waiting after a final fault: %v", id, err) }
		if _, err := m.Find(t.Context()); err == nil || !strings.Contains(err.Error(), "403") {
			t.Errorf("%s: error %v", id, err)
		}
	}
}
