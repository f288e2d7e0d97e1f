// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"bytes"
	"os"
	"os/exec"
	"sync"
	"testing"
)

// buffer is the log of several processes.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// start runs a command of the verifier until stop, or until the test ends.
func start(t *testing.T, log *buffer, program string, args ...string) (stop func()) {
	t.Helper()
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr, cmd.Env = log, log, append(os.Environ(), "POD_NAME=mcs-attest-"+args[0]+"-test")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stop = sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // the process was killed
	})
	t.Cleanup(stop)
	return stop
}
