// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
	manifests "github.com/mcs-attest/mcs-attest/pkg/manifest"
	"github.com/mcs-attest/mcs-attest/verifier/internal/admin"
	"github.com/mcs-attest/mcs-attest/verifier/internal/folder"
	"github.com/mcs-attest/mcs-attest/verifier/internal/hint"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/records"
	"github.com/mcs-attest/mcs-attest/verifier/internal/store"
	"github.com/mcs-attest/mcs-attest/verifier/internal/wholefile"
)

// deleted is the Done of what a command deleted.
const deleted = "deleted"

// Forget deletes the enrollments of a machine and its record, so that its TPM may be enrolled for another
// machine, and another TPM for it. Left says what stays.
func (f *Folder) Forget(ctx context.Context, name string, w Write) (done []Written, left []string, err error) {
	s, err := f.State(ctx)
	if err != nil {
		return nil, nil, err
	}
	about, err := Machine(s, "", name)
	if err != nil {
		return nil, nil, err
	}
	m, own, err := f.machine(about.UID)
	if err != nil {
		return nil, nil, err
	}
	if f.quarantined(ctx, s, about, m) {
		return nil, nil, quarantinedError(about.Name)
	}
	for _, e := range own {
		written, err := f.deleteEnrollment(e, w)
		if err != nil {
			return done, nil, err
		}
		done = append(done, written)
	}
	if !m.StandIn {
		left = append(left, fmt.Sprintf("Machine %s is not deleted: delete its manifest yourself", about.Name))
		if about.NodeRef != "" {
			left = append(left, fmt.Sprintf("it has joined as Node %s: 'reattest %s' allows one more provisioning",
				about.NodeRef, about.Name))
		}
	}
	record := Written{Where: "the record of " + about.Name, Done: deleted}
	if !w.dry() {
		// While the verifier still uses the enrollment, the machine could attest and get a new record.
		if s.Serving {
			if err := f.unused(ctx, about.UID); err != nil {
				return done, left, err
			}
		}
		if s.Serving || about.Record != nil {
			if err := f.deleteRecord(ctx, about.UID); err != nil {
				return done, left, fmt.Errorf("%s was not deleted: %w", record.Where, err)
			}
		}
	}
	if about.Record != nil {
		done = append(done, record)
	}
	return done, left, nil
}

func quarantinedError(name string) error {
	return hint.New(fmt.Errorf("%s is quarantined", name),
		"run 'quarantine %s --release' first: a deletion would end the quarantine", name)
}

// quarantined reports whether a machine is quarantined by its files, or by its record: by the serving verifier a
// moment after the files were read, or because the quarantine may be in a file that is not readable now.
func (f *Folder) quarantined(ctx context.Context, s *admin.State, about admin.Machine, m *machine.Machine) bool {
	if m.Quarantined() {
		return true
	}
	if !about.Quarantined {
		return false
	}
	if !s.Serving {
		// A verifier that starts keeps the quarantine of the record until each file is readable.
		now, err := folder.Load(f.Config.Data)
		return err != nil || now.Failed()
	}
	return wait.PollUntilContextTimeout(ctx, inForceEvery, releaseTime, false, func(ctx context.Context) (bool, error) {
		s, err := f.State(ctx)
		if err != nil {
			return false, err
		}
		i := slices.IndexFunc(s.Machines, func(m admin.Machine) bool { return m.UID == about.UID })
		return !s.Serving || i >= 0 && !s.Machines[i].Quarantined, nil
	}) != nil
}

const (
	// releaseTime is how long the serving verifier may take to notice that a quarantine was released.
	releaseTime = 5 * time.Second
	// unusedTime is how long it may take to notice that a file was deleted.
	unusedTime = 15 * time.Second
)

// unused waits until the serving verifier has the EKs of a machine that the folder has.
func (f *Folder) unused(ctx context.Context, uid string) error {
	now, err := folder.Load(f.Config.Data)
	if err != nil {
		return err
	}
	var want []string
	if m, ok := now.Machines.ByUID(uid); ok {
		want = m.EKSHA256
	}
	err = wait.PollUntilContextTimeout(ctx, inForceEvery, unusedTime, true, func(ctx context.Context) (bool, error) {
		s, err := admin.Ask(ctx, f.Config.Path("state", "admin.sock"))
		return errors.Is(err, admin.ErrNotServing) || err == nil && !slices.ContainsFunc(s.Machines,
			func(have admin.Machine) bool { return have.UID == uid && !slices.Equal(have.EKSHA256, want) }), nil
	})
	if err != nil {
		return hint.New(errors.New("the verifier still uses the enrollment, so the record was not deleted"),
			"correct the errors of the folder that 'status' shows; then the verifier deletes the record itself in about "+
				"ten minutes, and 'enroll --replace' enrolls a new TPM immediately")
	}
	return nil
}

// ForgetFormer deletes the record of the machine that m enrolls, if it is of a TPM that m does not name. It reports
// whether it deleted one. The record of a replaced TPM would deny the new one for good.
func (f *Folder) ForgetFormer(ctx context.Context, m *v1alpha1.MachineAttestation) (bool, error) {
	s, err := f.State(ctx)
	if err != nil {
		return false, err
	}
	for _, have := range s.Machines {
		if !isAbout(m, have.Name) || have.Record == nil || !ofAnotherTPM(have.Record, m) {
			continue
		}
		now, err := folder.Load(f.Config.Data)
		if err != nil {
			return false, err
		}
		if m, ok := now.Machines.ByUID(have.UID); ok && f.quarantined(ctx, s, have, m) {
			return false, quarantinedError(have.Name)
		}
		err = f.deleteRecord(ctx, have.UID)
		return err == nil, err
	}
	return false, nil
}

// ofAnotherTPM reports whether a record is of a TPM that an enrollment does not name.
func ofAnotherTPM(r *v1alpha1.MachineAttestationStatus, m *v1alpha1.MachineAttestation) bool {
	ek := r.Identity.EKSHA256
	return ek != "" && !slices.ContainsFunc(m.Spec.EKSHA256, func(h string) bool { return strings.EqualFold(h, ek) })
}

// deleteRecord has the serving verifier delete a record, or deletes it itself.
func (f *Folder) deleteRecord(ctx context.Context, uid string) error {
	err := admin.Forget(ctx, f.Config.Path("state", "admin.sock"), uid)
	if !errors.Is(err, admin.ErrNotServing) {
		return err
	}
	path := f.Config.Path("state", "records.db")
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	records, err := store.Open(path)
	if err != nil {
		return err
	}
	_, err = records.Prune(ctx, func(have string) bool { return have != uid })
	return errors.Join(err, records.Close())
}

// isManifest reports whether the verifier reads a file of this name.
func isManifest(path string) bool {
	name, ext := filepath.Base(path), filepath.Ext(path)
	return !strings.HasPrefix(name, ".") && (ext == ".yaml" || ext == ".yml" || ext == ".json")
}

// errNotRead means that the verifier does not read the file either.
var errNotRead = fmt.Errorf("not a regular file, or more than %d bytes", manifests.MaxFile)

// readManifest reads a file, or the file that a link refers to.
func readManifest(path string) (raw []byte, err error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
	case !info.Mode().IsRegular() || info.Size() > manifests.MaxFile:
		err = errNotRead
	default:
		raw, err = os.ReadFile(path)
	}
	if err != nil {
		return nil, fmt.Errorf("read manifest: %w", err)
	}
	return raw, nil
}

// file finds the file that a MachineAttestation is in, and reads it; "" if there is none. A file that cannot be read
// is an error only if no other file has the object.
func (f *Folder) file(namespace, name string) (path string, raw []byte, err error) {
	var unread error
	for _, dir := range []string{"attestations", "machines"} {
		entries, err := os.ReadDir(f.Config.Path(dir))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			unread = cmp.Or(unread, fmt.Errorf("read folder: %w", err))
		}
		for _, e := range entries {
			path := f.Config.Path(dir, e.Name())
			if !isManifest(path) {
				continue
			}
			raw, err := readManifest(path)
			if err != nil && !errors.Is(err, errNotRead) {
				unread = cmp.Or(unread, err)
			}
			// A broken file is not the one that an enrollment was read from.
			if _, object, err := amendYAML(raw, namespace, name, func(*yaml.Node) {}); err == nil && object != nil {
				return path, raw, nil
			}
		}
	}
	return "", nil, unread
}

// deleteEnrollment deletes an enrollment, and its file if nothing else is in it.
func (f *Folder) deleteEnrollment(e machine.Enrollment, w Write) (Written, error) {
	path, raw, err := f.file(e.Namespace, e.Name)
	if err != nil {
		return Written{}, err
	}
	if path == "" {
		return Written{}, fmt.Errorf("MachineAttestation %s/%s is no longer in a file of the folder", e.Namespace, e.Name)
	}
	next, ok, err := withoutYAML(raw, e.Namespace, e.Name)
	if err != nil {
		return Written{}, err
	}
	if !ok {
		return Written{}, hint.New(fmt.Errorf("%s has %s/%s in a list, which this command does not edit", path, e.Namespace,
			e.Name), "remove it from the file, and run forget again")
	}
	out := Written{Where: path, File: true, Done: deleted}
	switch {
	case len(next) > 0:
		out.Done = "changed"
		mode, err := regular(path)
		if err != nil || w.dry() {
			return out, err
		}
		return out, wholefile.Write(path, mode, next)
	case w.dry():
		return out, nil
	}
	return out, os.Remove(path)
}

// Forget deletes the enrollments of a machine. The record of a machine that an enrollment stands in for is the
// same object. The record of a Machine stays with the Machine: its bootstrap credentials are revoked with it.
func (c *Cluster) Forget(ctx context.Context, name string, w Write) (done []Written, left []string, err error) {
	m, own, unread, err := c.target(ctx, name)
	if err != nil {
		return nil, nil, err
	}
	for _, a := range own {
		if a.Spec.Quarantined || a.Status.Quarantined {
			return nil, nil, quarantinedError(m.String())
		}
	}
	if unread != nil {
		left = append(left, unread.Error())
	}
	for _, a := range own {
		if a.Name == records.UID(m) {
			left = append(left, c.recordStays(m))
			continue
		}
		if err := c.deleteAttestation(ctx, a, w); err != nil {
			return done, left, err
		}
		done = append(done, Written{Done: deleted,
			Where: "machineattestation.mcs-attest.dev/" + a.Name + " in namespace " + a.Namespace})
	}
	return done, left, nil
}

func (c *Cluster) recordStays(m *machine.Machine) string {
	group, _, _ := strings.Cut(m.APIVersion, "/")
	return fmt.Sprintf("the record of %s stays with the Machine, and denies another TPM. Delete the Machine, so that its "+
		"set creates a new one: kubectl delete machines.%s %s -n %s", m, group, m.Name, m.Namespace)
}

// deleteAttestation deletes this very object.
func (c *Cluster) deleteAttestation(ctx context.Context, a *v1alpha1.MachineAttestation, w Write) error {
	if w.DryRun == DryRunClient {
		return nil
	}
	uid := a.UID
	err := c.dynamic.Resource(attestations).Namespace(a.Namespace).Delete(ctx, a.Name,
		metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: (*types.UID)(&uid)}, DryRun: w.server()})
	if err == nil || apierrors.IsNotFound(err) {
		return nil
	}
	return c.failed("delete", attestations, a.Namespace, err)
}

// ForgetFormer replaces the object that stands in for a Machine, if it is the record of a TPM that m does not name. It
// creates m instead, which [Cluster.Enroll] returned, and reports whether it deleted the former object. The record of a
// Machine is the Machine's: the error says what to do.
func (c *Cluster) ForgetFormer(ctx context.Context, m *v1alpha1.MachineAttestation) (bool, error) {
	name := m.Namespace + "/" + m.Name
	if ref := m.Spec.MachineRef; ref != nil {
		name = cmp.Or(ref.Namespace, m.Namespace) + "/" + ref.Name
	}
	g, err := c.find(ctx, name)
	if err != nil {
		return false, err
	}
	state := g.named(c.o.Now(), name)
	if len(state.Machines) != 1 || state.Machines[0].Record == nil || !ofAnotherTPM(state.Machines[0].Record, m) {
		return false, nil
	}
	about, ok := g.index().ByUID(state.Machines[0].UID)
	switch {
	case !ok:
		return false, errGone
	case state.Machines[0].Quarantined:
		return false, quarantinedError(name)
	case !about.StandIn:
		return false, errors.New(c.recordStays(about))
	}
	for _, a := range g.objects {
		if string(a.UID) == about.UID {
			return c.recreate(ctx, a, m)
		}
	}
	return false, errGone
}

// recreateTime bounds the deletion of an object and the creation of the next one.
const recreateTime = time.Minute

// recreate deletes an object, and creates m instead. It reports whether it deleted the object, or may have.
func (c *Cluster) recreate(ctx context.Context, old, m *v1alpha1.MachineAttestation) (deleted bool, err error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	// From here on, an interrupt must not lose the enrollment.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recreateTime)
	defer cancel()
	every := wait.Backoff{Steps: 5, Duration: time.Second}
	// A deletion without an answer may have deleted the object.
	unanswered := func(err error) bool { return apierrors.ReasonForError(err) == metav1.StatusReasonUnknown }
	what := "may have been deleted"
	err = retry.OnError(every, unanswered, func() error { return c.deleteAttestation(ctx, old, Write{}) })
	if err != nil && !unanswered(err) {
		return false, err
	}
	next := &v1alpha1.MachineAttestation{ObjectMeta: metav1.ObjectMeta{Namespace: m.Namespace, Name: m.Name,
		Labels: m.Labels, Annotations: m.Annotations, OwnerReferences: m.OwnerReferences}, Spec: m.Spec}
	if err == nil {
		what = "was deleted, and creating it again failed"
		err = retry.OnError(every, func(error) bool { return true }, func() error {
			_, err := c.Enroll(ctx, next, Write{Replace: true})
			return err
		})
	}
	if err == nil {
		return true, nil
	}
	err = fmt.Errorf("the enrollment %s/%s %s: %w", m.Namespace, m.Name, what, err)
	raw, invalid := YAML(next)
	if invalid != nil {
		return true, errors.Join(err, invalid)
	}
	return true, hint.New(err, "store these lines in a file, and run 'kubectl apply -f FILE':\n%s", raw)
}
