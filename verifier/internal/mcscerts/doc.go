// Package mcscerts keeps the certificates of the Machine Config Server where
// nobody else does: its CA, the bundle of every valid CA, the serving certificate,
// and the CA in the pointer configs (DESIGN, section 13).
//
// In a cluster the objects are the machine-config-operator's, with its names and
// keys, and the mechanism is that of openshift/library-go, which it uses, too:
//
//	Secret    machine-config-server-ca    the CA that signs, with its key
//	ConfigMap machine-config-server-ca    ca-bundle.crt: every CA that is still valid
//	Secret    machine-config-server-tls   the serving certificate, on a P-256 key
//	Secrets   *-user-data                 pointer configs: the bundle as their CA
//
// A CA and a serving certificate are valid for ten years and renewed after eight.
// [Controller] does it while a replica holds the lease. It takes part only where it
// has to: see [Case].
//
// A rotation must not fail a machine that is booting with the pointer config of
// before, nor one that boots with that of after. Therefore:
//
//   - a new CA goes into the bundle, and from there into the pointer configs, long
//     before anything is signed with it;
//   - the serving certificate follows when the CA is older than a tenth of the
//     renewal period, or when an administrator says so and a day has gone by; and when
//     the pointer configs have it. For those that the verifier cannot write, others'
//     and the operator's own (*-managed, made before 4.19 from the installer's CA), it
//     waits and says so;
//   - the CA of before stays in bundle and pointers until it has expired;
//   - what is served when all this begins stays: the CA that issued it (kube-system's
//     root-ca, of the installer) goes into the bundle first.
//
// Only a serving certificate that has expired, or is missing, or leads to no CA of
// the bundle, is replaced at once: nobody could use it.
//
// [Folder] does the same over the files of a standalone verifier, where nobody but
// an administrator can bring a new pointer config to the machines.
package mcscerts
