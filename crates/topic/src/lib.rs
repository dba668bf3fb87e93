//! MQTT topic names, topic filters and the subscription index.
//!
//! This crate validates topic names and topic filters (MQTT 5 and 3.1.1, section 4.7) and finds the filters that match
//! a topic name. Matching runs once per publish, so it allocates nothing, and its cost depends on the filters that
//! match rather than on the number of filters in the index.
//!
//! # What this crate must never know
//! Who subscribes. A filter maps to a value of any type; sessions, members of shared subscriptions, shards and QoS
//! belong to the owner of the index. The crate does no IO, reads no clock, holds no lock and has no global state. An
//! index belongs to one thread, or is protected by a lock of its owner.
//!
//! # Entry points
//! - [`check_name`], [`check_filter`], [`parse_subscription`]: validation. Every string from a client passes one of
//!   them once.
//! - [`matches()`]: one filter against one name. Simple, and the reference that the index is tested against.
//! - [`Index`]: a map from filters to values, updated in place. [`Index::for_each_match`] is the hot path.
//! - [`MatchCache`]: match results by topic name, valid until the index changes.
//!
//! # Example
//! ```
//! use mainstem_topic::{Index, MatchCache, check_filter, check_name};
//!
//! let mut index: Index<Vec<&str>> = Index::new();
//! check_filter("plant/+/temp")?;
//! let (id, _new) = index.insert_with("plant/+/temp", Vec::new);
//! index.get_mut(id).expect("just inserted").push("dashboard");
//!
//! let mut cache = MatchCache::new(1024);
//! let name = "plant/7/temp";
//! check_name(name)?;
//! let epoch = index.epoch(); // read before matching
//! if cache.get(name, epoch).is_none() {
//!     let mut hit = Vec::new();
//!     index.for_each_match(name, |id, _subscribers| hit.push(id));
//!     cache.insert(name, epoch, hit);
//! }
//! assert_eq!(cache.get(name, epoch), Some(&vec![id]));
//! # Ok::<(), mainstem_topic::TopicError>(())
//! ```
//!
//! # Invariants
//! - No recursion and no backtracking: a match visits each trie node at most once, and a filter or name of 65,535
//!   levels takes time linear in its length.
//! - Removing a filter frees its nodes, level strings and table entries. Their memory is given back when only one of
//!   eight is in use, at the cost of about as many moves as there were removals.
//! - The [`FilterId`] of a removed filter never becomes valid again, even when its slot is reused.
//! - The order of matches depends on the filters and their insertion order, never on the hash seed.
//! - A wildcard filter takes one trie node of about 30 bytes for each level that it shares with no other filter. For a
//!   filter of empty levels that is many times its length, so servers with untrusted clients must limit
//!   [`level_count`].
//!
//! # Files
//! | file | contents |
//! |---|---|
//! | `name.rs` | validation of names and filters, and the reference matcher |
//! | `share.rs` | `$share/<group>/<filter>` |
//! | `index.rs` | [`Index`]: the exact table, the trie and the slots combined into one map |
//! | `slots.rs` | storage of values by [`FilterId`]: slots and generations |
//! | `trie.rs` | the trie of wildcard filters and the match over it |
//! | `levels.rs` | the interned level strings of the trie |
//! | `cache.rs` | [`MatchCache`] |
//! | `arena.rs`, `free_list.rs` | numbered storage; free numbers, and when memory is given back |
//! | `inline.rs`, `seed.rs` | a list with inline capacity, hashing |

mod arena;
mod cache;
mod free_list;
mod index;
mod inline;
mod levels;
mod name;
mod seed;
mod share;
mod slots;
mod trie;

pub use cache::{MAX_CACHED_NAME_BYTES, MatchCache};
pub use index::Index;
pub use name::{MAX_TOPIC_BYTES, TopicError, check_filter, check_name, has_wildcard, level_count, matches};
pub use share::{Subscription, parse_subscription};
pub use slots::FilterId;
