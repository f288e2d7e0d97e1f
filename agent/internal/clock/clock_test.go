// SPDX-License-Identifier: Apache-2.0

package clock_test

import (
	"bytes"
	"crypto/x509"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/agent/internal/clock"
	"github.com/mcs-attest/mcs-attest/agent/internal/console"
)

func year(n int) time.Time { return time.Date(n, 1, 1, 0, 0, 0, 0, time.UTC) }

// boot is a first boot in 2028. The program was built in 2026, the authority is of 2025 to 2035, and the
// server's certificate of 2027 to 2029.
type boot struct {
	now, served, built time.Time
	authorities        []*x509.Certificate
	leaf               *x509.Certificate
	failure            error
}

func newBoot() boot {
	return boot{
		now: year(2028), served: year(2028), built: year(2026),
		authorities: []*x509.Certificate{{NotBefore: year(2025), NotAfter: year(2035)}},
		leaf:        &x509.Certificate{NotBefore: year(2027), NotAfter: year(2029)},
	}
}

// run returns the time that was set, or the zero time, and the console.
func (b boot) run() (set time.Time, out string) {
	var text bytes.Buffer
	c := clock.Clock{
		Console: &console.Console{Out: &text, Err: &text}, Built: b.built, Authorities: b.authorities,
		Now: func() time.Time { return b.now },
		Set: func(t time.Time) error {
			if b.failure == nil {
				set = t
			}
			return b.failure
		},
	}
	c.Correct(b.served, [][]*x509.Certificate{{b.leaf, b.authorities[0]}})
	return set, text.String()
}

func TestCorrect_SetsAClockThatIsYearsOff(t *testing.T) {
	for name, now := range map[string]time.Time{
		"behind the program": year(2008), "behind the certificate": year(2026), "after every authority": year(2048),
	} {
		t.Run(name, func(t *testing.T) {
			b := newBoot()
			b.now = now
			set, out := b.run()
			if !set.Equal(b.served) {
				t.Errorf("set to %v\n%s", set, out)
			}
			want := "set this machine's clock from " + now.Format(time.RFC3339) + " to 2028-01-01T00:00:00Z"
			if !strings.Contains(out, want) {
				t.Errorf("console: %s", out)
			}
		})
	}
}

func TestCorrect_KeepsAClockByWhichTheServerIsValid(t *testing.T) {
	b := newBoot()
	b.now = b.served.Add(-300 * 24 * time.Hour)
	if set, out := b.run(); !set.IsZero() || out != "" {
		t.Errorf("set to %v: %s", set, out)
	}
}

// Attack T75: a server with a certificate of the authority sends a time of its choice.
func TestAttack_T75_ClockIsNotSet(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*boot)
		want   string
	}{
		"back, with a stolen certificate that has expired": {func(b *boot) {
			b.now, b.served = year(2030), year(2028)
		}, "may be correct"},
		"back, at the last moment of an authority": {func(b *boot) { b.now = year(2035) }, "may be correct"},
		"back, after the end of only one authority": {func(b *boot) {
			b.now = year(2036)
			b.authorities = append(b.authorities, &x509.Certificate{NotBefore: year(2026), NotAfter: year(2037)})
		}, "may be correct"},
		"forward, to a time before the build": {func(b *boot) {
			b.now, b.served, b.built = year(2008), year(2028), year(2028).Add(time.Second)
		}, "before this program was built"},
		"forward, to a time before the newest authority": {func(b *boot) {
			b.now = year(2008)
			b.authorities = append(b.authorities, &x509.Certificate{NotBefore: year(2030), NotAfter: year(2040)})
		}, "before an authority"},
		"far forward":          {func(b *boot) { b.now, b.served = year(2008), year(2033) }, "not valid by the server's"},
		"without a time":       {func(b *boot) { b.now, b.served = year(2008), time.Time{} }, "sent no time"},
		"by an unknown build":  {func(b *boot) { b.now, b.built = year(2008), time.Time{} }, "has no date"},
		"the kernel denies it": {func(b *boot) { b.now, b.failure = year(2008), errors.New("denied") }, "denied"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBoot()
			c.change(&b)
			set, out := b.run()
			if !set.IsZero() {
				t.Errorf("set to %v", set)
			}
			if !strings.Contains(out, c.want) || !strings.Contains(out, "hint: ") {
				t.Errorf("console: %s", out)
			}
		})
	}
}
