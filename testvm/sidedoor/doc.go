// SPDX-License-Identifier: Apache-2.0

// Package sidedoor tries to bypass the verifier. It builds a small network of namespaces (a
// control-plane host, a node, pods on both), loads the rules that are deployed on the control
// plane, and connects to 22623 and 22624 from everywhere. It needs root.
//
// Each attempt is first made without the rules, where it must succeed. Otherwise the test could not
// detect whether the rules close the door.
package sidedoor
