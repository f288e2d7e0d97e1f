// SPDX-License-Identifier: Apache-2.0

package command

import (
	"context"
	"os/exec"
	"regexp"
	"strconv"
	"time"

	"github.com/mcs-attest/mcs-attest/agent/internal/paths"
)

// ignitionVersion is what Ignition prints: "Ignition 2.21.0", on Debian "Ignition Debian 2.14.0+ds1-1+b6".
var ignitionVersion = regexp.MustCompile(`^Ignition (?:[A-Z]\w+ )?v?2\.(\d{1,3})\.`)

// accept returns the Accept header that the Ignition of this initramfs will send, or "" if that is unknown.
func (a *agent) accept(ctx context.Context) string {
	if !paths.Exists(a.paths.Initrd) {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, a.paths.Ignition, "--version").Output()
	if err != nil {
		return ""
	}
	return acceptOf(string(out))
}

// acceptOf returns the header of the Ignition that prints this version (internal/resource/url.go in its source).
func acceptOf(printed string) string {
	found := ignitionVersion.FindStringSubmatch(printed)
	if found == nil {
		return ""
	}
	var spec string
	switch minor, _ := strconv.Atoi(found[1]); {
	case minor == 14:
		spec = "3.3.0"
	case minor >= 16 && minor <= 18:
		spec = "3.4.0"
	case minor >= 20 && minor <= 25:
		spec = "3.5.0"
	case minor >= 26:
		spec = "3.6.0" // a newer one is served as this one is
	default:
		return ""
	}
	return "application/vnd.coreos.ignition+json;version=" + spec + ", */*;q=0.1"
}
