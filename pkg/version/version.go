// SPDX-License-Identifier: Apache-2.0

// Package version reports which build of mcs-attest runs. Both programs print it, and the agent sends it
// to the verifier. It promises the same answer for the life of the process.
//
// A release sets these values with the linker. The date is that of the commit, in seconds since 1970:
//
//	-X github.com/mcs-attest/mcs-attest/pkg/version.version=v0.3.0
//	-X github.com/mcs-attest/mcs-attest/pkg/version.commit=0123456789abcdef0123456789abcdef01234567
//	-X github.com/mcs-attest/mcs-attest/pkg/version.date=1767323045
//
// A program that 'go install' built has what the go command recorded in it.
package version

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"
	"strconv"
	"time"
)

var version, commit, date string // set by the linker

const unknown = "unknown"

// Version returns the version, for example "v0.3.0", or "unknown".
func Version() string {
	recorded := ""
	if info, ok := debug.ReadBuildInfo(); ok {
		recorded = info.Main.Version
	}
	return cmp.Or(version, recorded, unknown)
}

// Commit returns the full hash of the commit that was built, or "unknown".
func Commit() string {
	recorded := ""
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				recorded = s.Value
			}
		}
	}
	return cmp.Or(commit, recorded, unknown)
}

// Date returns the time of the commit that was built, or the zero time if the linker did not set it.
func Date() time.Time {
	seconds, err := strconv.ParseInt(date, 10, 64)
	if err != nil {
		return time.Time{}
	}
	return time.Unix(seconds, 0).UTC()
}

// String returns what the programs print after their name:
// "v0.3.0 (commit 0123456789abcdef0123456789abcdef01234567, go1.26.8, linux/amd64)".
func String() string {
	return fmt.Sprintf("%s (commit %s, %s, %s/%s)", Version(), Commit(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
