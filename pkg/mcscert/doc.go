// SPDX-License-Identifier: Apache-2.0

// Package mcscert decides about the certificates of the Machine Config Server: who renews
// them, when each is replaced, and how a pointer config gets the CA bundle. It is pure. The
// controller in a cluster, the folder of a standalone verifier and the certs commands use it.
//
// A CA and a serving certificate are valid for ten years and are renewed after eight. A
// rotation must not fail a machine that boots with an older or a newer pointer config:
//
//   - A new CA is first added to the bundle, and from there to the pointer configs.
//   - The serving certificate follows when the pointer configs have the new CA and it is older
//     than a tenth of the renewal period. An administrator can request it after a day.
//   - The previous CA stays in the bundle and the pointer configs until it expires.
//   - A serving certificate that no machine can use is replaced immediately.
package mcscert
