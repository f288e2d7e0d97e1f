// SPDX-License-Identifier: Apache-2.0

package machine

// Advance copies only the progress (deletion or join) from a later state of a Machine
// that is otherwise invalid. It reports whether the registry has the Machine. If the
// later state has another UID, Advance deletes the Machine of that name.
func (r *Registry) Advance(later Machine) bool {
	key := name{later.group(), later.Namespace, later.Name}
	r.mu.RLock()
	k, ok := r.machines[key]
	r.mu.RUnlock()
	if !ok {
		return false
	}
	if k.uid != later.UID {
		r.DeleteMachine(key.group, key.namespace, key.name)
		return false
	}
	r.PutMachine(k.machine().advanced(later))
	return true
}
