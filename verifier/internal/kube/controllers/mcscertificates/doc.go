// Package mcscertificates keeps the certificates of the Machine Config Server in a cluster where
// the machine-config-operator does not: its CA, the bundle of every valid CA, the serving
// certificate, and the bundle in pointer configs. Package mcscert has the rules, library-go's
// certrotation makes the CA, the bundle and the Secrets as the machine-config-operator does.
//
// It watches nothing. It reads the objects live once a minute: the certificates change once in
// years, RBAC grants the objects by name, and no cache holds the key of the CA.
//
// It writes these objects, and only where [mcscert.Case.Ours] is true:
//
//	Secret    openshift-machine-config-operator/machine-config-server-ca    the CA and its key
//	ConfigMap openshift-machine-config-operator/machine-config-server-ca    ca-bundle.crt
//	Secret    openshift-machine-config-operator/machine-config-server-tls   the serving certificate
//	Secrets   that the configuration or MachineSets name                    pointer configs
//	Events    about the ConfigMap
//
// It needs get and update on those, get on the ConfigMap kube-system/root-ca and on
// NAME-user-data-managed, and list on MachineSets and ControlPlaneMachineSets: see
// deploy/components/certificates. It cannot create the first three; 'certs init' does, with an
// administrator's account, through [Reconciler.Init].
//
// If it runs twice at the same time, the slower update conflicts and the pass is repeated. If it
// runs late, certificates are renewed late; a renewal is due two years before an expiry. One
// controller writes both the serving certificate and the pointer configs because the order
// matters: no certificate is served before the pointer configs have the CA that signed it.
package mcscertificates
