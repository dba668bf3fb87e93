//! The repeated parts of packets: user properties, subscription identifiers, filters. Each is either the bytes
//! it was decoded from or a list to encode, and iterates the same either way.

use std::slice;

use crate::packet::{SubscribeFilter, SubscribeOptions};
use crate::properties::{id, skip_value};
use crate::wire::Reader;

/// User properties in order: the property section they stand in, or a list to encode.
///
/// Two values are equal when they iterate to the same pairs.
#[derive(Clone, Copy, Debug)]
pub enum UserProperties<'a> {
    /// A checked property section; whatever else stands in it is skipped.
    Wire(&'a [u8]),
    /// Name and value pairs.
    Pairs(&'a [(&'a str, &'a str)]),
}

/// Subscription Identifiers in order: the property section they stand in, or a list to encode.
///
/// Two values are equal when they iterate to the same numbers.
#[derive(Clone, Copy, Debug)]
pub enum SubscriptionIds<'a> {
    /// A checked property section; whatever else stands in it is skipped.
    Wire(&'a [u8]),
    /// The identifiers.
    List(&'a [u32]),
}

/// The filters of a SUBSCRIBE: the checked payload, or a list to encode. Iterate with `iter()`.
///
/// Two values are equal when they iterate to the same filters.
#[derive(Clone, Copy, Debug)]
pub enum SubscribeFilters<'a> {
    /// The checked payload.
    Wire(&'a [u8]),
    /// Filters with their options.
    List(&'a [SubscribeFilter<'a>]),
}

/// The filters of an UNSUBSCRIBE: the checked payload, or a list to encode. Iterate with `iter()`.
///
/// Two values are equal when they iterate to the same filters.
#[derive(Clone, Copy, Debug)]
pub enum UnsubscribeFilters<'a> {
    /// The checked payload.
    Wire(&'a [u8]),
    /// Filters.
    List(&'a [&'a str]),
}

/// What `iter()` of the lists returns. Bytes that no decoder has checked end the iteration where they break.
#[derive(Clone, Debug)]
pub struct Iter<'a, T>(Source<'a, T>);

#[derive(Clone, Debug)]
enum Source<'a, T> {
    /// Bytes, and how to read the next item off their front.
    Wire(Reader<'a>, fn(&mut Reader<'a>) -> Option<T>),
    List(slice::Iter<'a, T>),
}

impl<T: Copy> Iterator for Iter<'_, T> {
    type Item = T;

    #[inline]
    fn next(&mut self) -> Option<T> {
        match &mut self.0 {
            Source::Wire(reader, next) => next(reader),
            Source::List(list) => list.next().copied(),
        }
    }
}

/// Gives a list type its iteration, emptiness, default, equality and constructor.
macro_rules! list {
    ($list:ident, $variant:ident, $item:ty, $next:path) => {
        impl<'a> $list<'a> {
            /// The items in order.
            pub fn iter(&self) -> Iter<'a, $item> {
                Iter(match *self {
                    Self::Wire(bytes) => Source::Wire(Reader::new(bytes), $next),
                    Self::$variant(list) => Source::List(list.iter()),
                })
            }

            /// Whether there are none.
            pub fn is_empty(&self) -> bool {
                self.iter().next().is_none()
            }
        }

        impl<'a> IntoIterator for $list<'a> {
            type Item = $item;
            type IntoIter = Iter<'a, $item>;

            fn into_iter(self) -> Self::IntoIter {
                self.iter()
            }
        }

        impl<'a> IntoIterator for &$list<'a> {
            type Item = $item;
            type IntoIter = Iter<'a, $item>;

            fn into_iter(self) -> Self::IntoIter {
                self.iter()
            }
        }

        impl Default for $list<'_> {
            fn default() -> Self {
                Self::$variant(&[])
            }
        }

        impl PartialEq for $list<'_> {
            fn eq(&self, other: &Self) -> bool {
                self.iter().eq(other.iter())
            }
        }

        impl<'a> From<&'a [$item]> for $list<'a> {
            fn from(list: &'a [$item]) -> Self {
                Self::$variant(list)
            }
        }
    };
}

list!(UserProperties, Pairs, (&'a str, &'a str), next_user_property);
list!(SubscriptionIds, List, u32, next_subscription_id);
list!(SubscribeFilters, List, SubscribeFilter<'a>, next_subscribe_filter);
list!(UnsubscribeFilters, List, &'a str, next_unsubscribe_filter);

impl Eq for UserProperties<'_> {}
impl Eq for SubscriptionIds<'_> {}
impl Eq for SubscribeFilters<'_> {}
impl Eq for UnsubscribeFilters<'_> {}

fn next_user_property<'a>(reader: &mut Reader<'a>) -> Option<(&'a str, &'a str)> {
    skip_to(id::USER_PROPERTY, reader)?;
    Some((reader.string().ok()?, reader.string().ok()?))
}

fn next_subscription_id(reader: &mut Reader<'_>) -> Option<u32> {
    skip_to(id::SUBSCRIPTION_IDENTIFIER, reader)?;
    reader.varint().ok()
}

fn next_subscribe_filter<'a>(reader: &mut Reader<'a>) -> Option<SubscribeFilter<'a>> {
    let filter = reader.string().ok()?;
    let options = SubscribeOptions::try_from(reader.u8().ok()?).ok()?;
    Some(SubscribeFilter { filter, options })
}

fn next_unsubscribe_filter<'a>(reader: &mut Reader<'a>) -> Option<&'a str> {
    reader.string().ok()
}

/// Steps over properties up to and including the identifier `wanted`.
fn skip_to(wanted: u8, reader: &mut Reader<'_>) -> Option<()> {
    loop {
        let id = reader.u8().ok()?;
        if id == wanted {
            return Some(());
        }
        skip_value(id, reader).ok()?;
    }
}
