package machine

// Advance takes over how far a Machine has come, that it is being deleted or has
// joined, and nothing else, from a later state that cannot be used as a whole. It
// reports whether the Machine is known: an earlier one of that name is forgotten.
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
