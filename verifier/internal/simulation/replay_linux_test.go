// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// atRandom is the entry of the auxiliary vector with the address of 16 random bytes. See getauxval(3).
	atRandom = 25
	// alike is how many threads a program with cgo has when its tests begin: those of main, of the clock and of cgo, and
	// one that runs while main waits. When main waits again before that one sleeps, the runtime starts one more.
	alike = 4
	// another is the exit code of a process that has more, so that another one must take its place.
	another = 75
	// attempts is how often a process may start.
	attempts = 100
)

// exactly runs one seed in a process of its own, with its trace. What the process does depends only on the seed and the
// program, because:
//
//   - the runtime's own randomness comes from the seed: hashes, the order of a map, the case that a select takes. A
//     runtime gets it from the kernel through the auxiliary vector, which a tracer can write
//   - goroutines run one at a time, and no collection of garbage changes their order. So the addresses of objects are
//     the same, and with them the order of maps whose keys are pointers
//   - the thread that interrupts goroutines by the clock of the machine never runs. It is the first that a
//     runtime starts
//   - the other threads share one CPU and do not preempt each other, so that the same ones exist in each process
//
// It returns what the process printed, and an error if the seed fails.
func exactly(program string, seed uint64) (out []byte, err error) {
	for range attempts {
		done := make(chan struct{})
		go func() {
			runtime.LockOSThread() // a tracer is a thread. It ends with its goroutine, because it runs on one CPU now
			defer close(done)
			out, err = traced(program, seed)
		}()
		<-done
		if e, ok := errors.AsType[*exec.ExitError](err); !ok || e.ExitCode() != another {
			break
		}
	}
	return out, err
}

func traced(program string, seed uint64) ([]byte, error) {
	if err := onOneCPU(); err != nil {
		return nil, err
	}
	var out bytes.Buffer
	cmd := exec.Command(program, "-test.run=^TestSimulation$", "-test.timeout=0", "-simulation.single",
		"-simulation.trace", "-simulation.seeds=1", fmt.Sprint("-simulation.first=", seed))
	cmd.Env = []string{"GOMAXPROCS=1", "GOGC=off", "GOMEMLIMIT=4GiB"}
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	clock, err := begin(cmd.Process.Pid, seed)
	if err != nil {
		return nil, errors.Join(err, cmd.Process.Kill())
	}
	for s, err := wait(clock); err == nil && s.Stopped(); {
		s, err = wait(clock)
	}
	err = cmd.Wait()
	return out.Bytes(), err
}

// onOneCPU lets this thread and its children share its current CPU. None preempts another one when it wakes.
func onOneCPU() error {
	var cpu uint32
	if _, _, errno := unix.RawSyscall(unix.SYS_GETCPU, uintptr(unsafe.Pointer(&cpu)), 0, 0); errno != 0 {
		return errno
	}
	var one unix.CPUSet
	one.Set(int(cpu))
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		return err
	}
	var priority int32
	_, _, errno := unix.RawSyscall(unix.SYS_SCHED_SETSCHEDULER, 0, unix.SCHED_BATCH, uintptr(unsafe.Pointer(&priority)))
	if errno != 0 {
		return errno
	}
	return nil
}

// begin lets a traced process run that has not begun. It returns the thread that stays stopped.
func begin(pid int, seed uint64) (clock int, err error) {
	if _, err := wait(pid); err != nil {
		return 0, err
	}
	vector, err := os.ReadFile(fmt.Sprintf("/proc/%d/auxv", pid))
	if err != nil {
		return 0, err
	}
	for ; len(vector) >= 16; vector = vector[16:] {
		if binary.NativeEndian.Uint64(vector) == atRandom {
			random := binary.LittleEndian.AppendUint64([]byte("the seed"), seed+1) // a runtime ignores zeros
			if _, err := syscall.PtracePokeData(pid, uintptr(binary.NativeEndian.Uint64(vector[8:])), random); err != nil {
				return 0, err
			}
		}
	}
	if err := syscall.PtraceSetOptions(pid, syscall.PTRACE_O_TRACECLONE); err != nil {
		return 0, err
	}
	for signal := 0; ; {
		if err := syscall.PtraceCont(pid, signal); err != nil {
			return 0, err
		}
		s, err := wait(pid)
		switch {
		case err != nil:
			return 0, err
		case !s.Stopped():
			return 0, fmt.Errorf("process %d ended before it had a second thread", pid)
		case s.TrapCause() == syscall.PTRACE_EVENT_CLONE:
			tid, err := syscall.PtraceGetEventMsg(pid)
			return int(tid), errors.Join(err, syscall.PtraceDetach(pid))
		}
		signal = int(s.StopSignal())
	}
}

// wait waits until a thread of a traced process stops or ends.
func wait(tid int) (s syscall.WaitStatus, err error) {
	for {
		if _, err = syscall.Wait4(tid, &s, syscall.WALL, nil); !errors.Is(err, syscall.EINTR) {
			return s, err
		}
	}
}

func threads() (int, error) {
	all, err := os.ReadDir("/proc/self/task")
	return len(all), err
}

// repeatable runs a seed so that a second run of a failing seed is the same.
func repeatable(t *testing.T, seed uint64) {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	out, err := exactly(program, seed)
	if *verbose {
		os.Stderr.Write(out)
	}
	if err == nil {
		return
	}
	if failed := failedSeed.FindSubmatch(out); failed != nil {
		t.Fatalf("%v\n%s", err, failed[2])
	}
	t.Fatalf("%v\n%s", err, out[max(0, len(out)-4000):])
}

// TestReplay checks that two runs of a seed are the same: each request and its answer, their times, all logs.
// It needs a kernel that lets a process trace its own child.
func TestReplay(t *testing.T) {
	program := build(t)
	run := func() []string {
		out, err := exactly(program, *first)
		if err != nil {
			t.Fatalf("%v\n%s", err, out[max(0, len(out)-4000):])
		}
		return strings.Split(string(out), "\n")
	}
	one, two := run(), run()
	for i := range min(len(one), len(two)) {
		if one[i] != two[i] {
			t.Fatalf("line %d of %d differs:\n%s\n%s", i, len(one), one[i], two[i])
		}
	}
	if len(one) != len(two) || len(one) < 1000 {
		t.Errorf("the two runs have %d and %d lines", len(one), len(two))
	}
}
