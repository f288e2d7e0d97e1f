// SPDX-License-Identifier: Apache-2.0

package platform

import "net/url"

// OpenStackHosts returns the hosts that would be dialed.
func OpenStackHosts(base string, links []string) (hosts []string) {
	for _, b := range openstackMetadata(base, links) {
		u, err := url.Parse(b + "/" + openstackUserData)
		if err != nil {
			return []string{err.Error()}
		}
		hosts = append(hosts, u.Hostname())
	}
	return hosts
}

// LinksWithIPv6 calls linksWithIPv6.
func LinksWithIPv6() []string { return linksWithIPv6() }

// OVFProperties calls ovfProperties.
func OVFProperties(document string) (map[string]string, error) { return ovfProperties(document) }
