// SPDX-License-Identifier: Apache-2.0

// Package pointer reads and changes pointer configs: the small Ignition config in a machine's user
// data that refers to the full config.
//
//   - [Parse] accepts what the node's Ignition accepts (specification 3.0 to 3.6). It finds the
//     sources that may belong to a Machine Config Server: "https://host[:port]/config/<pool>" in
//     ignition.config.merge and ignition.config.replace.
//   - [Config.AddBearer] returns a copy with an Authorization header on the sources of one origin
//     and one pool.
//   - [Provision] adds a provisioning token to the sources of some origins, in the user data that a
//     cluster stores for its machines. [SetAuthorities] updates the certificate authorities there.
//   - [Scrub] removes such headers from the config that Ignition caches in /run, and from the
//     configs in its data sources. It then searches the whole result for the token.
//
// # AddBearer
//
//   - The token is added only to https sources with exactly the given scheme, host, port and pool.
//     All other sources, and all bytes outside of the changed values, stay the same. The text is
//     edited in place and never marshaled again, so unknown keys are preserved.
//   - A replace stays a replace, and a merge a merge.
//   - An existing Authorization header, in any case, is replaced. Ignition rejects the same name
//     twice, and of two spellings it sends the last.
//   - Specification 3.0 has no httpHeaders; Ignition would ignore them with a warning. Such a
//     config becomes 3.1.0. No other version changes.
//   - Ignition's own package parses the result, and every header is checked there.
//
// A config inside a "data:" source is changed in the same way. Its source is encoded again, without
// the compression and the verification hash that no longer fit. A config behind another URL is not
// fetched.
//
// # Limits
//
// The input is untrusted: other parties than the cluster's administrator can read, and often write,
// user data. At most [MaxSize] bytes are read, and data sources are followed to [MaxDepth]. A key
// that occurs twice on the path to a source is rejected, because two parsers could read two
// different configs.
//
// User data that is not an Ignition config is not an error of the machine: [ErrNotIgnition] tells
// the caller to leave it to Ignition.
package pointer
