// Package sidedoor tries to walk around the verifier. It builds a small network
// of namespaces (a control-plane host, a node, pods on both), loads the rules
// that are deployed on the control plane into it, and knocks on 22623 and 22624
// from everywhere. Needs root.
//
// Each attempt is made without the rules first, where it must succeed: a test
// that cannot see the side door would not see that it is closed either.
package sidedoor
