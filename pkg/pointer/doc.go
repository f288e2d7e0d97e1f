// Package pointer reads and changes pointer configs: the small Ignition config
// in a machine's user data that says where the full one is.
//
// [Parse] accepts what the node's Ignition would (specification 3.0 to 3.6) and
// finds the sources that look like a Machine Config Server's:
// "https://host[:port]/config/<pool>" in ignition.config.merge and
// ignition.config.replace. [Config.AddBearer] returns a copy that differs only
// by an Authorization header on the sources of one origin and one pool.
// [Provision] puts a provisioning token on the sources of some origins, in the
// user data that a cluster keeps for its machines, and [SetAuthorities] the
// certificate authorities.
// [Scrub] takes such headers out of the config that Ignition caches in /run, and
// out of the configs in its data sources. It then searches all of it for the token.
//
// # What AddBearer promises
//
//   - The token goes to https sources of exactly the given scheme, host, port
//     and pool. Every other source, and every byte outside the changed values,
//     stays as it was: the text is edited in place and never re-marshalled, so
//     keys that this package does not know survive.
//   - A replace stays a replace, and a merge a merge.
//   - An Authorization header that is already there, in any case, is replaced:
//     Ignition refuses the same name twice, and of two spellings sends the last.
//   - Specification 3.0 has no httpHeaders, and Ignition would ignore them with
//     a warning: such a config becomes 3.1.0, and no config more than that.
//   - The result is parsed by Ignition's own package again, and every header is
//     checked there, before it is returned.
//
// A config inside a "data:" source is treated the same way; its source is then
// encoded anew, without the compression and the verification hash that no
// longer fit. A config behind another URL is not fetched.
//
// # Bounds
//
// The input is untrusted: user data is readable and often writable by more
// parties than the cluster's administrator. At most [MaxSize] bytes are read,
// data sources are followed to [MaxDepth], and a key that occurs twice on the
// way to a source is refused, because two readers may see two configs in it.
//
// User data that is not an Ignition config is not an error of the machine:
// [ErrNotIgnition] lets the caller leave it to Ignition.
package pointer
