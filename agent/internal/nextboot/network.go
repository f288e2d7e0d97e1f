// SPDX-License-Identifier: Apache-2.0

package nextboot

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// plain matches a network argument of dracut.cmdline(7), NetworkManager's nm-initrd-generator(8) or CoreOS. GRUB parses
// the flag, and then its value again as a part of a command. None of these characters has a meaning for it.
//
// It does not match rd.znet: the boot loader of s390x does not read the flag.
var plain = regexp.MustCompile(`^(ip|nameserver|rd\.neednet|rd\.route|rd\.peerdns|rd\.net\.[0-9a-z.-]+|rd\.ethtool|` +
	`bond|team|bridge|vlan|ib\.pkey|ifname|bootdev|BOOTIF|rd\.bootif|net\.ifnames|biosdevname|` +
	`coreos\.(no|force)_persist_ip)(=[0-9A-Za-z.:,/=_%+\[\]-]*)?$`)

// hostname matches a platform on which CoreOS asks a metadata service for the hostname in each first boot, which fails
// without a network (afterburn-hostname.service). On other platforms, a machine without DHCP would only boot later.
var hostname = regexp.MustCompile(`^ignition\.platform\.id=(aliyun|azure|azurestack|digitalocean|exoscale|hetzner|` +
	`oraclecloud|scaleway|upcloud|vultr)$`)

// KeepNetwork stores the network arguments that the flag of a first boot had, for the flag that Stage writes. The
// cmdline has the words of the kernel command line. In a boot without a flag, KeepNetwork does nothing.
//
// An installer stores these arguments only in the flag, which CoreOS deletes in the first boot. An argument that the
// boot loader's entries also have is permanent. It is left out, because the next boot would have it twice. So is an
// argument that GRUB could read in another way. If a platform needs a network in each first boot, KeepNetwork adds
// rd.neednet=1.
func (b Boot) KeepNetwork(cmdline []string) error {
	if b.Network == "" || !slices.Contains(cmdline, flag) {
		return nil
	}
	entries, err := filepath.Glob(filepath.Join(b.Dir, "loader", "entries", "*.conf"))
	if err != nil {
		return err
	}
	var permanent []string
	for _, entry := range entries {
		raw, err := os.ReadFile(entry)
		if err != nil {
			return fmt.Errorf("the network arguments of this boot: %w", err)
		}
		permanent = append(permanent, strings.Fields(string(raw))...)
	}
	var words []string
	for _, word := range cmdline {
		if plain.MatchString(word) && !slices.Contains(permanent, word) {
			words = append(words, word)
		}
	}
	needs := func(word string) bool { return strings.HasPrefix(word, "rd.neednet") }
	if slices.ContainsFunc(cmdline, hostname.MatchString) && !slices.ContainsFunc(cmdline, needs) {
		words = append(words, "rd.neednet=1")
	}
	return WriteFile(b.Network, []byte(strings.Join(words, " ")))
}

// writeFlag writes the flag: empty, or with the arguments of KeepNetwork, as coreos-installer writes it.
func (b Boot) writeFlag() error {
	raw, err := os.ReadFile(b.Network)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var content []byte
	if len(raw) > 0 {
		content = fmt.Appendf(nil, "set ignition_network_kcmdline=\"%s\"\n", raw)
	}
	return WriteFile(filepath.Join(b.Dir, flag), content)
}
