// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/mcs-attest/mcs-attest/testvm/children"
)

// BootTimeout limits the time until the end of a machine. An idle host needs 12 to 30 seconds; a
// host that runs all tests at the same time has needed 600 for one that starts pods.
const BootTimeout = 40 * time.Minute

// VM defines what to boot. The zero value is a machine without a TPM and without a config, with the
// agent in its initramfs, started by SeaBIOS.
type VM struct {
	// Name is used in file names and progress lines; "node" if empty.
	Name   string
	TPM    *TPM
	Initrd Initrd
	// Pointer is the platform's pointer config, provided by fw_cfg.
	Pointer []byte
	// Platform is Ignition's name of the platform; "qemu" if empty.
	Platform string
	// Metadata answers at 169.254.169.254:80, only for this machine; the verifier is then at
	// [CloudHost]. Nil means that the address does not exist.
	Metadata http.Handler
	// ConfigDrive is a CD-ROM with the label config-2: path to content. Nil means none.
	ConfigDrive map[string]string
	// SealedRoot is a volume of [Rig.NewSealedRoot] as the root disk, which keeps what a machine writes.
	// Root does not apply.
	SealedRoot string
	// Cmdline is added to the kernel's command line.
	Cmdline string
	// Root has additional files for the root disk: path to content.
	Root map[string]string
	// Kubelet turns its real root into a Node. Nil means that the machine prints what it received,
	// and ends.
	Kubelet *Kubelet
	// UKI boots through OVMF from an EFI system partition instead.
	UKI *UKI
	// GRUB boots shim, GRUB and the kernel from an EFI system partition through OVMF instead.
	GRUB *GRUB
	// CoreOS boots this disk, as its boot loader entry says: directly, or with SecureBoot through shim and
	// GRUB. Initrd, Pointer, Root, Kubelet and LaterBoot do not apply.
	CoreOS *CoreOSDisk
	// SecureBoot enables Secure Boot with the snake-oil keys for a UKI, and with Microsoft's otherwise.
	SecureBoot bool
	// OtherFirmware boots GRUB through another build of OVMF, which has the same keys.
	OtherFirmware bool
	// MicrosoftKeys boots the kernel directly through OVMF with Microsoft's keys enrolled, none of
	// which signed it.
	MicrosoftKeys bool
	// Clock is the start of the machine's clock, "2006-01-02T15:04:05"; the host's time if empty.
	Clock   string
	Network Network
	// LaterBoot omits what makes a first boot.
	LaterBoot bool
	// OnLine is called with each line of the console.
	OnLine func(string)
}

// Node is a machine that was started.
type Node struct {
	r       *Rig
	name    string
	dir     string
	overlay string
	onLine  func(string)
	ports   map[int]string // the addresses of this host for ports of the guest

	cmd   *exec.Cmd
	stdin io.Writer // stdin of its console
	ended chan struct{}

	mu       sync.Mutex
	console  []string
	changed  chan struct{}
	metadata []string // its requests to the metadata service
}

// Every machine boots with bareCmdline, and on a first boot with [firstBoot]. rd.shell=0: instead
// of an emergency shell the machine restarts, as CoreOS does after a while. no_timer_check: on a busy
// host, interrupts of the emulated timer are too late for the kernel's check of them, and it panics.
// The arguments after it only make the emulation faster: QEMU translates a library again for each
// address at which it is loaded.
const (
	bareCmdline   = "console=ttyS0 root=LABEL=root rw " + commonCmdline
	commonCmdline = "rd.shell=0 rd.emergency=reboot panic=-1 no_timer_check norandmaps mitigations=off " +
		"audit=0 cryptomgr.notests"
)

// processor is an old model with the instructions that cryptography uses. QEMU emulates AVX and a
// larger register state more slowly. Without cx16, Linux 6.12 and later do not use the instruction
// that QEMU 7.2 emulates wrongly for them, with a double fault. One core needs a third less processor
// time than two, because emulated cores wait for each other.
const processor = "qemu64,ssse3=on,sse4.1=on,sse4.2=on,aes=on,pclmulqdq=on,popcnt=on,rdrand=on,cx16=off"

func firstBoot(platform string) string {
	return bareCmdline + " ignition.firstboot=1 ignition.platform.id=" + cmp.Or(platform, "qemu") + " rd.neednet=1"
}

// Boot starts a machine.
func (r *Rig) Boot(vm VM) *Node {
	r.t.Helper()
	r.machines++
	if vm.Name == "" {
		vm.Name = "node"
	}
	n := &Node{
		r: r, name: fmt.Sprintf("%s-%d", vm.Name, r.machines), dir: filepath.Join(r.dir, fmt.Sprintf("vm%d", r.machines)),
		onLine: vm.OnLine, ended: make(chan struct{}), changed: make(chan struct{}),
	}
	r.fatal(os.Mkdir(n.dir, 0o755), "machine")
	kernel, _ := r.Kernel(vm.Initrd.System)
	format, root := "qcow2", "virtio-blk-pci,drive=root"
	switch {
	case vm.CoreOS != nil:
		n.overlay, format = vm.CoreOS.Path, "raw"
		root += ",bootindex=1" // OVMF shows GRUB only disks that have one
	case vm.SealedRoot != "":
		n.overlay, format = vm.SealedRoot, "raw"
	default:
		n.overlay = filepath.Join(n.dir, "root.qcow2")
		r.run(n.dir, nil, "qemu-img", "create", "-q", "-f", "qcow2", "-b", r.rootDisk(vm.Root, vm.Kubelet), "-F", "raw",
			n.overlay)
	}

	machine, memory := "q35", "640"
	if vm.Kubelet != nil {
		memory = vm.Kubelet.memory()
	} else if vm.CoreOS != nil {
		memory = cmp.Or(vm.CoreOS.memory, memory)
	}
	args := []string{
		"-accel", "tcg,tb-size=256", "-cpu", processor, "-smp", "1", "-m", memory,
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-device", "virtio-rng-pci",
		"-drive", "if=none,id=root,format=" + format + ",cache=unsafe,file=" + n.overlay,
		"-device", root,
		"-serial", "stdio", "-serial", "file:" + n.path("journal.log"), "-serial", "file:" + n.path("probe.log"),
	}
	network, program := n.network(vm)
	args = append(args, network...)
	if vm.Network.waits() {
		args = append(args, "-S", "-monitor", "unix:"+n.monitorSocket()+",server=on,wait=off")
	}
	if vm.Clock != "" {
		args = append(args, "-rtc", "base="+vm.Clock)
	}
	if vm.Pointer != nil {
		r.fatal(os.WriteFile(n.path("pointer.ign"), vm.Pointer, 0o644), "pointer config")
		args = append(args, "-fw_cfg", "name=opt/com.coreos/config,file="+n.path("pointer.ign"))
	}
	if vm.ConfigDrive != nil {
		args = append(args, "-device", "virtio-scsi-pci", "-device", "scsi-cd,drive=config",
			"-drive", "if=none,id=config,format=raw,readonly=on,file="+r.configDrive(n.path("config.iso"), vm.ConfigDrive))
	}
	if vm.UKI != nil || vm.GRUB != nil || vm.CoreOS != nil && vm.SecureBoot {
		vars := ovmf + "OVMF_VARS_4M.fd"
		if vm.SecureBoot {
			vars = ovmf + "OVMF_VARS_4M.ms.fd"
		}
		var files map[string]string
		switch {
		case vm.UKI != nil:
			files = vm.UKI.files(r, vm.LaterBoot)
			if vm.SecureBoot {
				vars = ovmf + "OVMF_VARS_4M.snakeoil.fd"
			}
		case vm.GRUB != nil:
			files = vm.GRUB.files(r, vm.LaterBoot, vm.Platform)
		default:
			files = vm.CoreOS.espFiles()
		}
		firmware, options := n.firmware(vars, vm.SecureBoot, vm.OtherFirmware)
		machine += options
		args = append(args, firmware...)
		args = append(args, "-drive", "if=none,id=esp,format=raw,cache=unsafe,snapshot=on,file="+r.esp(files),
			"-device", "virtio-blk-pci,drive=esp,bootindex=0")
		if vm.Cmdline != "" {
			r.t.Fatalf("a unified kernel image and grub.cfg have the command line: use their Cmdline")
		}
	} else {
		line := firstBoot(vm.Platform)
		if vm.LaterBoot {
			line = bareCmdline
		}
		var initrd string
		if vm.CoreOS != nil {
			kernel, initrd, line = vm.CoreOS.loaded()
		}
		if vm.MicrosoftKeys {
			firmware, _ := n.firmware(ovmf+"OVMF_VARS_4M.ms.fd", false, false)
			args = append(args, firmware...)
			vm.Initrd.Compress = true
		}
		if vm.Cmdline != "" {
			line += " " + vm.Cmdline
		}
		if vm.Kubelet != nil {
			line += vm.Kubelet.cmdline()
		}
		if initrd == "" {
			initrd = r.Build(vm.Initrd)
		}
		args = append(args, "-kernel", kernel, "-initrd", initrd, "-append", line)
	}
	if vm.TPM != nil {
		socket := n.path("tpm")
		vm.TPM.start(socket)
		args = append(args, "-chardev", "socket,id=tpm,path="+socket,
			"-tpmdev", "emulator,id=tpm0,chardev=tpm", "-device", "tpm-tis,tpmdev=tpm0")
	}
	n.start(append(append(program, "-machine", machine), args...))
	if vm.Network.waits() {
		n.monitor("set_link net off")
		n.monitor("cont")
	}
	r.progress("%s started", n.name)
	return n
}

func (n *Node) path(name string) string { return filepath.Join(n.dir, n.name+"-"+name) }

func (n *Node) start(args []string) {
	n.r.t.Helper()
	n.cmd = exec.Command(args[0], args[1:]...)
	stdout, err := n.cmd.StdoutPipe()
	n.r.fatal(err, "QEMU")
	n.stdin, err = n.cmd.StdinPipe()
	n.r.fatal(err, "QEMU")
	errlog, err := os.Create(n.path("qemu.log"))
	n.r.fatal(err, "QEMU")
	n.cmd.Stderr = errlog
	for _, name := range []string{"console.log", "journal.log", "qemu.log"} {
		n.r.keep(n.path(name))
	}
	n.r.fatal(children.Start(n.cmd), "QEMU")
	n.r.t.Cleanup(n.Kill)
	go func() {
		defer close(n.ended)
		defer errlog.Close()
		n.read(stdout)
		if err := n.cmd.Wait(); err != nil {
			n.add("rig: QEMU ended: " + err.Error())
		}
	}()
}

// escape matches what a terminal would interpret.
var escape = regexp.MustCompile("\x1b(\\[[0-9;?]*[a-zA-Z]|[c()][0-9A-Z]?)|\r")

func (n *Node) read(console io.Reader) {
	log, err := os.Create(n.path("console.log"))
	if err != nil {
		n.add("rig: " + err.Error())
		return
	}
	defer log.Close()
	in := bufio.NewReader(io.TeeReader(console, log))
	for {
		line, err := in.ReadString('\n')
		if line != "" {
			n.add(escape.ReplaceAllString(strings.TrimRight(line, "\n"), ""))
		}
		if err != nil {
			return
		}
	}
}

func (n *Node) add(line string) {
	if n.onLine != nil {
		n.onLine(line)
	}
	n.mu.Lock()
	n.console = append(n.console, line)
	close(n.changed)
	n.changed = make(chan struct{})
	n.mu.Unlock()
}

func (n *Node) lines() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]string(nil), n.console...)
}

// Console returns everything that the machine has printed so far.
func (n *Node) Console() string { return strings.Join(n.lines(), "\n") + "\n" }

// Journal returns the initramfs' journal so far, from the second serial port.
func (n *Node) Journal() string { return n.read1("journal.log") }

// Probe returns the output of the rig's probe (rig.probe on the command line): the pointer config
// with the node's token, before Ignition used it. For a machine with a kubelet it returns the
// kubeconfig, without the probe.
func (n *Node) Probe() string { return n.read1("probe.log") }

func (n *Node) read1(name string) string {
	n.r.t.Helper()
	b, err := os.ReadFile(n.path(name))
	n.r.fatal(err, "serial port")
	return string(b)
}

// WaitFor waits until a console line matches, and returns that line.
func (n *Node) WaitFor(pattern string) string {
	n.r.t.Helper()
	re := regexp.MustCompile(pattern)
	deadline := time.After(BootTimeout)
	seen := 0
	for {
		n.mu.Lock()
		lines, changed := n.console[seen:], n.changed
		n.mu.Unlock()
		seen += len(lines)
		for _, l := range lines {
			if re.MatchString(l) {
				return l
			}
		}
		select {
		case <-changed:
		case <-n.ended:
			n.mu.Lock()
			rest := n.console[seen:]
			n.mu.Unlock()
			for _, l := range rest {
				if re.MatchString(l) {
					return l
				}
			}
			n.r.t.Fatalf("%s ended before its console said %q; it ended with\n%s", n.name, pattern, n.tail())
		case <-deadline:
			n.r.t.Fatalf("%s did not print %q within %v; the last lines are\n%s", n.name, pattern, BootTimeout, n.tail())
		}
	}
}

// Wait waits until the machine has switched itself off.
func (n *Node) Wait() {
	n.r.t.Helper()
	select {
	case <-n.ended:
	case <-time.After(BootTimeout):
		n.Kill()
		n.r.t.Fatalf("%s still runs after %v; it said last\n%s", n.name, BootTimeout, n.tail())
	}
}

// Kill cuts the power.
func (n *Node) Kill() {
	select {
	case <-n.ended:
		return
	default:
	}
	if err := n.cmd.Process.Kill(); err != nil {
		n.r.t.Logf("rig: cutting the power of %s: %v", n.name, err)
	}
	<-n.ended
}

func (n *Node) tail() string {
	lines := n.lines()
	return "\t" + strings.Join(lines[max(0, len(lines)-40):], "\n\t")
}

// Said reports whether a console line matches.
func (n *Node) Said(pattern string) bool {
	re := regexp.MustCompile(pattern)
	for _, l := range n.lines() {
		if re.MatchString(l) {
			return true
		}
	}
	return false
}
