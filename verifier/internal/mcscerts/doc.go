// Package mcscerts keeps the certificates of the Machine Config Server where
// nobody else does: its CA, the bundle of every valid CA, and the serving
// certificate, as the machine-config-operator has them (DESIGN, section 13).
package mcscerts

import _ "github.com/openshift/library-go/pkg/operator/certrotation" // the mechanism
