//! MQTT topic names, topic filters and the subscription index.
//!
//! Two questions are answered here: is this string a topic name or a topic filter (MQTT 5 and 3.1.1, section
//! 4.7), and which of many filters match this name. The second is asked once per publish, so it allocates
//! nothing and costs the same with a million filters as with ten.
//!
//! # What this crate must never know
//! Who subscribes: a filter carries a value of any type, and sessions, shared-subscription members, shards and
//! quality of service are the owner's. It does no IO, reads no clock, holds no lock and has no global state; an
//! index belongs to one thread, or to whatever lock its owner puts around it.
//!
//! # Entry points
//! - [`check_name`], [`check_filter`], [`parse_subscription`]: what arrives from a client passes one of these once.
//! - [`matches()`]: one filter against one name. Plain, and the model that the index is tested against.
//! - [`Index`]: filters to values, updated in place; [`Index::for_each_match`] is the hot path.
//! - [`MatchCache`]: results of matching, kept per topic name until the index changes.
//!
//! # How it is used
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
//! - Nothing recurses and nothing backtracks: the walk sees each trie node at most once per match, and a filter or
//!   name of 65,535 levels takes time linear in its length.
//! - Removing what was inserted leaves no node, no level string and no table entry behind; only capacity stays.
//! - A [`FilterId`] of a removed filter never becomes valid again, whatever takes its slot.
//! - The order of visits depends on the filters and the order they came in, never on the hash seed.
//! - A wildcard filter costs a trie node per level that it shares with no other, some 30 bytes each. That is many
//!   times the length of a filter of empty levels, so owners that face strangers bound [`level_count`].
//!
//! # Files
//! | file | holds |
//! |---|---|
//! | `name.rs` | what a name and a filter may be, and the plain matcher |
//! | `share.rs` | `$share/<group>/<filter>` |
//! | `index.rs` | [`Index`]: the exact table, the trie and the slots as one map |
//! | `slots.rs` | values under [`FilterId`]s: slots and generations |
//! | `trie.rs` | the wildcard filters and the walk over them |
//! | `levels.rs` | the level strings of the trie, each stored once |
//! | `cache.rs` | [`MatchCache`] |
//! | `arena.rs`, `inline.rs`, `seed.rs` | numbered storage, a short list on the stack, hashing |

mod arena;
mod cache;
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
