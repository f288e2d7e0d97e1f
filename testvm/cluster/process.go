// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/mcs-attest/mcs-attest/testvm/children"
)

// process is a program in its own process group, with its output in a file. It ends with this
// process, however this process ends.
type process struct {
	name  string
	log   string
	cmd   *exec.Cmd
	ended chan struct{}
	err   error // how it ended, once ended is closed
}

// start runs a program and appends its output to the file log.
func start(name, log, dir, program string, args ...string) (*process, error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	p := &process{name: name, log: log, cmd: exec.Command(program, args...), ended: make(chan struct{})}
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = dir, out, out
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := children.Start(p.cmd); err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.ended)
	}()
	return p, nil
}

// kill ends the process group immediately and waits for its end.
func (p *process) kill() {
	if p == nil {
		return
	}
	// The group may have ended already.
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	<-p.ended
}

// ready polls until check returns nil, the process ends or [startLimit] has passed.
func (p *process) ready(check func() error) error {
	deadline := time.Now().Add(startLimit)
	for {
		err := check()
		if err == nil {
			return nil
		}
		select {
		case <-p.ended:
			return fmt.Errorf("%s ended (%w); it said last\n%s", p.name, p.err, tail(p.log))
		case <-time.After(50 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s is not ready after %v: %w; it said last\n%s", p.name, startLimit, err, tail(p.log))
		}
	}
}

// tail returns the end of a log file, for messages.
func tail(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return "\t" + err.Error()
	}
	lines := strings.Split(strings.TrimRight(string(b), "\n"), "\n")
	lines = lines[max(0, len(lines)-25):]
	for i, l := range lines {
		lines[i] = "\t" + l[:min(len(l), 400)]
	}
	return strings.Join(lines, "\n")
}
