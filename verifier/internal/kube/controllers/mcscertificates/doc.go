// SPDX-License-Identifier: Apache-2.0

// Package mcscertificates renews the certificates of the Machine Config Server in a cluster where the
// machine-config-operator does not. These are its CA, the bundle of every valid CA, the serving
// certificate, and the bundle in pointer configs. Package mcscert has the rules. Package certrotation
// writes the CA, the bundle and the serving certificate.
//
// It watches nothing. It reads the objects live once a minute: the certificates change once in years,
// RBAC grants access to the objects by name, and no cache contains the key of the CA.
//
// It writes these objects, and only if [mcscert.Case.Ours] is true:
//
//	Secret    openshift-machine-config-operator/machine-config-server-ca    the CA and its key
//	ConfigMap openshift-machine-config-operator/machine-config-server-ca    ca-bundle.crt
//	Secret    openshift-machine-config-operator/machine-config-server-tls   the serving certificate
//	Secrets   that the configuration or MachineSets name                    pointer configs
//	Events    about the ConfigMap
//
// A deleted MachineSet, and one that an API server does not serve while it starts, look the same. So the
// switch to a new CA, and the decision who renews, wait until a kind was absent for a minute. The commands
// ask again for ten seconds.
//
// It needs get and update on those, get on the ConfigMap kube-system/root-ca, on
// NAME-user-data-managed and on the Infrastructure and the ARO Cluster, both named cluster, and list on
// MachineSets and ControlPlaneMachineSets: see deploy/components/certificates. It cannot create the first
// three objects. 'certs init' does so with an administrator's account, through [Reconciler.Init]. While it
// changes the type of the serving Secret, the Secret machine-config-server-tls-copy has its content.
//
// If it runs twice at the same time, the slower update conflicts and the pass is repeated. If it runs
// late, certificates are renewed late; a renewal is due two years before the expiry. One controller
// writes both the serving certificate and the pointer configs because the order matters: it serves no
// certificate before the pointer configs have the CA that signed it.
package mcscertificates
