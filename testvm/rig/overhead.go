// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"regexp"
	"strconv"
	"time"
)

// WatchMemory returns files for [Initrd].Extra that print the agent's peak memory, for
// [Node.AgentMemory].
func (r *Rig) WatchMemory() map[string]string {
	r.t.Helper()
	files := map[string]string{}
	for to, from := range map[string]string{
		"usr/bin/rig-memory":                                     "rig-memory",
		"etc/systemd/system/rig-memory.service":                  "rig-memory.service",
		"etc/systemd/system/mcs-attest.service.d/90-memory.conf": "mcs-attest.conf",
	} {
		b, err := guestFiles.ReadFile("guest/memory/" + from)
		r.fatal(err, "guest files")
		files[to] = string(b)
	}
	return files
}

// AgentMemory returns the largest resident set of the agent in bytes, on a boot with [Rig.WatchMemory].
func (n *Node) AgentMemory() int64 {
	n.r.t.Helper()
	found := regexp.MustCompile(`rig: agent's peak memory (\d+) kB`).FindStringSubmatch(n.Console())
	if found == nil {
		n.r.t.Fatalf("%s did not print the agent's memory; it said last\n%s", n.name, n.tail())
	}
	kB, err := strconv.ParseInt(found[1], 10, 64)
	n.r.fatal(err, "the agent's memory")
	return kB << 10
}

// unitLine matches systemd's lines in the journal about the start and the end of the agent's units.
var unitLine = regexp.MustCompile(`(?m)^\[ *([0-9.]+)\] .*: (Starting|Finished) (mcs-attest[a-z-]*\.service)`)

// AgentTime returns the duration of the agent's units, by the machine's own clock.
func (n *Node) AgentTime() time.Duration {
	n.r.t.Helper()
	started := map[string]float64{}
	var total float64
	for _, m := range unitLine.FindAllStringSubmatch(n.Journal(), -1) {
		at, err := strconv.ParseFloat(m[1], 64)
		n.r.fatal(err, "journal")
		if m[2] == "Starting" {
			started[m[3]] = at
		} else {
			total += at - started[m[3]]
		}
	}
	return time.Duration(total * float64(time.Second))
}

// ProcessorTime returns what the emulator needed for the whole life of a machine that has ended.
func (n *Node) ProcessorTime() time.Duration {
	return n.cmd.ProcessState.UserTime() + n.cmd.ProcessState.SystemTime()
}
