// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"iter"
	"slices"
)

// multimap is a map to several values, compact if most keys have one. The zero value is empty.
type multimap[K, V comparable] struct {
	one  map[K]V
	more map[K][]V
}

func (m multimap[K, V]) has(k K) bool {
	_, ok := m.one[k]
	return ok
}

func (m multimap[K, V]) all(k K) iter.Seq[V] {
	return func(yield func(V) bool) {
		if v, ok := m.one[k]; !ok || !yield(v) {
			return
		}
		for _, v := range m.more[k] {
			if !yield(v) {
				return
			}
		}
	}
}

// set adds a value of a key, or removes it.
func (m *multimap[K, V]) set(k K, v V, present bool) {
	if present {
		m.add(k, v)
	} else {
		m.remove(k, v)
	}
}

func (m *multimap[K, V]) add(k K, v V) {
	if m.one == nil {
		m.one, m.more = map[K]V{}, map[K][]V{}
	}
	if _, ok := m.one[k]; ok {
		m.more[k] = append(m.more[k], v)
		return
	}
	m.one[k] = v
}

func (m *multimap[K, V]) remove(k K, v V) {
	list := slices.DeleteFunc(slices.Collect(m.all(k)), func(x V) bool { return x == v })
	delete(m.one, k)
	delete(m.more, k)
	for _, x := range list {
		m.add(k, x)
	}
}
