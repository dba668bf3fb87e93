//! The repeated fields of packets: user properties, subscription identifiers and filters.
//!
//! Each is either a slice of the decoded bytes or a list to encode, and iterates the same way in both forms. Decoding
//! therefore needs no allocation for a variable number of items: the bytes are checked once and parsed again on
//! iteration.

use std::{iter, slice};

use crate::property_id::{id, skip_value};
use crate::types::{SubscribeFilter, SubscribeOptions};
use crate::wire::Reader;

/// User properties in order: the property section that contains them, or a list to encode.
///
/// Two values are equal if they yield the same pairs.
#[derive(Clone, Copy, Debug)]
pub enum UserProperties<'a> {
    /// A checked property section. Other properties in it are skipped. The encoder does not check it again.
    Wire(&'a [u8]),
    /// Name and value pairs.
    Pairs(&'a [(&'a str, &'a str)]),
}

/// Subscription Identifiers in order: the property section that contains them, or a list to encode.
///
/// Two values are equal if they yield the same numbers.
#[derive(Clone, Copy, Debug)]
pub enum SubscriptionIds<'a> {
    /// A checked property section. Other properties in it are skipped.
    Wire(&'a [u8]),
    /// The identifiers.
    List(&'a [u32]),
}

/// The filters of a SUBSCRIBE: the checked payload, or a list to encode. Iterate with `iter()`.
///
/// Two values are equal if they yield the same filters.
#[derive(Clone, Copy, Debug)]
pub enum SubscribeFilters<'a> {
    /// The checked payload.
    Wire(&'a [u8]),
    /// Filters with their options.
    List(&'a [SubscribeFilter<'a>]),
}

/// The filters of an UNSUBSCRIBE: the checked payload, or a list to encode. Iterate with `iter()`.
///
/// Two values are equal if they yield the same filters.
#[derive(Clone, Copy, Debug)]
pub enum UnsubscribeFilters<'a> {
    /// The checked payload.
    Wire(&'a [u8]),
    /// Filters.
    List(&'a [&'a str]),
}

/// The iterator returned by `iter()` of the lists. On bytes that the decoder has not checked, it ends at the first
/// error.
#[derive(Clone, Debug)]
pub struct Iter<'a, T>(Source<'a, T>);

#[derive(Clone, Debug)]
enum Source<'a, T> {
    /// Bytes, and the function that reads the next item.
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

/// Implements iteration, `is_empty`, `Default`, `PartialEq` and `From` for a list type.
macro_rules! list {
    ($list:ident, $variant:ident, $item:ty, $next:path) => {
        impl<'a> $list<'a> {
            /// Returns the items in order.
            pub fn iter(&self) -> Iter<'a, $item> {
                Iter(match *self {
                    Self::Wire(bytes) => Source::Wire(Reader::new(bytes), $next),
                    Self::$variant(list) => Source::List(list.iter()),
                })
            }

            /// Returns whether there are no items.
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

impl UserProperties<'_> {
    /// Appends the properties as they stand in a packet, and nothing else that their section contains. `false` if one
    /// of them is too long for a packet, which cannot be if they have been decoded.
    pub fn append_to(&self, out: &mut Vec<u8>) -> bool {
        for (name, value) in self {
            let (Ok(name_len), Ok(value_len)) = (u16::try_from(name.len()), u16::try_from(value.len()))
            else {
                return false;
            };
            out.push(id::USER_PROPERTY);
            out.extend_from_slice(&name_len.to_be_bytes());
            out.extend_from_slice(name.as_bytes());
            out.extend_from_slice(&value_len.to_be_bytes());
            out.extend_from_slice(value.as_bytes());
        }
        true
    }
}

impl Eq for UserProperties<'_> {}
impl Eq for SubscriptionIds<'_> {}
impl Eq for SubscribeFilters<'_> {}
impl Eq for UnsubscribeFilters<'_> {}

/// Returns the user properties of a checked section as bytes, for the encoder, which does not check them again.
pub(crate) fn raw_user_properties(section: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    let mut reader = Reader::new(section);
    iter::from_fn(move || {
        skip_to(id::USER_PROPERTY, &mut reader)?;
        Some((reader.binary().ok()?, reader.binary().ok()?))
    })
}

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

/// Skips properties up to and including the identifier `target`.
fn skip_to(target: u8, reader: &mut Reader<'_>) -> Option<()> {
    loop {
        let id = reader.u8().ok()?;
        if id == target {
            return Some(());
        }
        skip_value(id, reader).ok()?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const A_AND_B: UserProperties<'static> = UserProperties::Pairs(&[("a", "1"), ("b", "2")]);

    #[test]
    fn other_properties_are_skipped() {
        let section =
            b"\x01\x01\x26\x00\x01a\x00\x011\x0b\x80\x01\x02\x00\x00\x00\x01\x26\x00\x01b\x00\x012\x0b\x05";
        assert_eq!(UserProperties::Wire(section), A_AND_B);
        assert_eq!(SubscriptionIds::Wire(section), SubscriptionIds::List(&[128, 5]));
        assert!(raw_user_properties(section).eq([(&b"a"[..], &b"1"[..]), (b"b", b"2")]));
    }

    #[test]
    fn lists_are_equal_only_if_all_items_are_equal() {
        assert_ne!(A_AND_B, UserProperties::Pairs(&[("b", "2"), ("a", "1")]), "order matters");
        assert_ne!(A_AND_B, UserProperties::Pairs(&[("a", "1")]));
        assert_eq!(UserProperties::default(), UserProperties::Wire(&[]));
        assert!(UserProperties::Wire(b"\x01\x01").is_empty() && !A_AND_B.is_empty());
    }

    proptest! {
        #[test]
        fn unchecked_bytes_end_the_iteration(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            // Every item takes at least one byte.
            prop_assert!(UserProperties::Wire(&bytes).iter().count() <= bytes.len());
            prop_assert!(raw_user_properties(&bytes).count() <= bytes.len());
            prop_assert!(SubscriptionIds::Wire(&bytes).iter().count() <= bytes.len());
            prop_assert!(SubscribeFilters::Wire(&bytes).iter().count() <= bytes.len());
            prop_assert!(UnsubscribeFilters::Wire(&bytes).iter().count() <= bytes.len());
        }
    }
}
