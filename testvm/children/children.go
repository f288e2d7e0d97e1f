// SPDX-License-Identifier: Apache-2.0

// Package children starts programs that end with this process, however this process ends. A machine that outlives a
// killed test would use a core until an administrator ends it.
package children

import (
	"os/exec"
	"runtime"
	"sync"
	"syscall"
)

// launcher is the thread that starts every program: the kernel sends the parent-death signal when the *thread* that
// started the child ends.
var launcher = sync.OnceValue(func() chan<- func() {
	jobs := make(chan func())
	go func() {
		runtime.LockOSThread()
		for job := range jobs {
			job()
		}
	}()
	return jobs
})

// Start is like cmd.Start. The program is killed when this process ends.
func Start(cmd *exec.Cmd) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	started := make(chan error)
	launcher() <- func() { started <- cmd.Start() }
	return <-started
}
