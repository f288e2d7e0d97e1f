// SPDX-License-Identifier: Apache-2.0

package nextboot_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// entry is a boot loader entry. Its arguments are permanent.
const entry = "title CoreOS\noptions $ignition_firstboot rw nameserver=192.0.2.53 rd.neednet\n"

func TestStage_FlagHasTheNetworkOfTheFirstBoot(t *testing.T) {
	const flagged = "ignition.firstboot "
	for name, c := range map[string]struct {
		boots []string // their command lines
		want  string   // the arguments
	}{
		"no network": {[]string{flagged + "rw ignition.platform.id=metal"}, ""},
		"a static address": {[]string{flagged +
			"rd.neednet=1 ip=10.0.2.77::10.0.2.2:255.255.255.0:n:ens3:none nameserver=10.0.2.3 rw"},
			"rd.neednet=1 ip=10.0.2.77::10.0.2.2:255.255.255.0:n:ens3:none nameserver=10.0.2.3"},
		"IPv6 without DHCP": {[]string{flagged + "ip=[fd00::2]::[fd00::1]:64::ens3:none rd.net.timeout.ipv6dad=9 rw"},
			"ip=[fd00::2]::[fd00::1]:64::ens3:none rd.net.timeout.ipv6dad=9"},
		"a bond with a VLAN": {[]string{flagged + "bond=bond0:em1,em2:mode=802.3ad,xmit_hash_policy=layer2+3 " +
			"vlan=bond0.100:bond0 ip=10.0.0.2/24::10.0.0.1:::bond0.100:none"},
			"bond=bond0:em1,em2:mode=802.3ad,xmit_hash_policy=layer2+3 vlan=bond0.100:bond0 " +
				"ip=10.0.0.2/24::10.0.0.1:::bond0.100:none"},
		// Otherwise the second boot would store the connections of the initramfs in the real root.
		"a choice of CoreOS for the real root": {[]string{flagged + "ip=ens3:dhcp coreos.no_persist_ip"},
			"ip=ens3:dhcp coreos.no_persist_ip"},
		"also a permanent network": {[]string{flagged + "ip=ens3:dhcp rw nameserver=192.0.2.53 rd.neednet"},
			"ip=ens3:dhcp"},
		"a boot in between":  {[]string{flagged + "ip=ens3:dhcp", "rw nameserver=10.0.2.3"}, "ip=ens3:dhcp"},
		"another first boot": {[]string{flagged + "ip=ens3:dhcp", flagged + "quiet"}, ""},
		"only a later boot":  {[]string{"ip=ens3:dhcp"}, ""},
		"other names":        {[]string{flagged + "ipx=1 xip=1 rd.neednets=1 rd.net=1 rd.break=ip=1 IP=1 rd.znet=qeth"}, ""},
		"characters with a meaning for GRUB": {[]string{flagged + `ip=$root ip=${root} ip="a ip=' ip=a;reboot ip=a\x20 ` +
			"ip=a|b ip=a&b ip={a} ip=<a ip=>a ip=* ip=? ip=#a ip=`a` ip=a\nreboot ip=\u00e4 ip=ens3:dhcp\n"}, ""},
		// CoreOS asks for the hostname there.
		"a metadata service":  {[]string{flagged + "ignition.platform.id=hetzner"}, "rd.neednet=1"},
		"a network for both":  {[]string{flagged + "ip=a:dhcp ignition.platform.id=vultr"}, "ip=a:dhcp rd.neednet=1"},
		"a requested network": {[]string{flagged + "rd.neednet=1 ignition.platform.id=vultr"}, "rd.neednet=1"},
		"a permanent network": {[]string{flagged + "rd.neednet ignition.platform.id=upcloud"}, ""},
		"a drive":             {[]string{flagged + "ignition.platform.id=kubevirt"}, ""},
		"a similar name":      {[]string{flagged + "ignition.platform.id=scaleways"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBoot(t)
			b.Network = filepath.Join(filepath.Dir(b.Dir), "network")
			entries := filepath.Join(b.Dir, "loader", "entries")
			if err := errors.Join(os.MkdirAll(entries, 0o755),
				os.WriteFile(filepath.Join(entries, "ostree-1.conf"), []byte(entry), 0o600)); err != nil {
				t.Fatal(err)
			}
			for _, line := range c.boots {
				if err := b.KeepNetwork(strings.Split(line, " ")); err != nil {
					t.Fatal(err)
				}
			}
			if err := b.Stage([]byte("a secret")); err != nil {
				t.Fatal(err)
			}
			want := ""
			if c.want != "" {
				want = `set ignition_network_kcmdline="` + c.want + "\"\n"
			}
			raw, err := os.ReadFile(filepath.Join(b.Dir, "ignition.firstboot"))
			if err != nil || string(raw) != want {
				t.Errorf("the flag has %q instead of %q, %v", raw, want, err)
			}
		})
	}
}

// At each moment the disk has the arguments of one call. A file that is changed in place could be empty after a power
// cut.
func TestKeepNetwork_DoesNotChangeTheFileInPlace(t *testing.T) {
	b := newBoot(t)
	dir := filepath.Dir(b.Dir)
	b.Network = filepath.Join(dir, "network")
	keep := func(words ...string) {
		t.Helper()
		if err := b.KeepNetwork(append([]string{"ignition.firstboot"}, words...)); err != nil {
			t.Fatal(err)
		}
	}
	read := func(file string) string {
		t.Helper()
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return string(raw)
	}
	keep("ip=ens3:dhcp")
	first := filepath.Join(dir, "first")
	past := time.Unix(1, 0)
	if err := errors.Join(os.Link(b.Network, first), os.Chtimes(first, past, past)); err != nil {
		t.Fatal(err)
	}
	keep("ip=ens3:dhcp")
	info, err := os.Stat(b.Network)
	if err != nil || !info.ModTime().Equal(past) {
		t.Errorf("the same arguments were written again: %v, %v", info, err)
	}
	// A crash left a part of a file.
	if err := os.WriteFile(filepath.Join(dir, ".mcs-attest.tmp"), []byte("ip=e"), 0o600); err != nil {
		t.Fatal(err)
	}
	keep("ip=ens4:dhcp")
	if old, current := read(first), read(b.Network); old != "ip=ens3:dhcp" || current != "ip=ens4:dhcp" {
		t.Errorf("the old file has %q, the current one %q", old, current)
	}
}
