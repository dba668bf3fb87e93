//! What a message is, and the two macros that the files under `api/` write messages down with.

use std::fmt::Debug;
use std::ops::RangeInclusive;

use crate::reader::{DecodeError, Reader};

/// The body of a request or a response, which header and frame come before.
pub trait Message: Sized + Default + Clone + Debug + PartialEq {
    /// Takes a message of this version off the front. What this version does not have gets its default, and tagged
    /// fields nobody knows are skipped.
    ///
    /// # Errors
    /// [`DecodeError`].
    fn decode(reader: &mut Reader<'_>, version: i16) -> Result<Self, DecodeError>;

    /// Appends the message in this version. What the version does not have is left out; what must not be null in it
    /// and is becomes empty.
    fn encode(&self, into: &mut Vec<u8>, version: i16);
}

/// A message that asks, and what it is answered with.
pub trait Request: Message {
    /// Number of the API.
    const KEY: i16;
    /// The versions that can be coded.
    const VERSIONS: RangeInclusive<i16>;
    /// The first version with compact lengths and tagged fields (KIP-482), in headers too; `i16::MAX` if none has them.
    const FLEXIBLE_FROM: i16;
    /// What answers it.
    type Response: Message;
}

/// Makes two structs that `message!` has declared the request and the response of an API.
macro_rules! request {
    (
        $request:ident => $response:ident,
        key $key:literal, versions $versions:expr $(, flexible $flexible_from:literal..)?
    ) => {
        impl crate::message::Request for $request {
            const KEY: i16 = $key;
            const VERSIONS: std::ops::RangeInclusive<i16> = $versions;
            const FLEXIBLE_FROM: i16 = or!($($flexible_from)?, i16::MAX);
            type Response = $response;
        }

        top_level!($request, or!($($flexible_from)?, i16::MAX));
        top_level!($response, or!($($flexible_from)?, i16::MAX));
    };
}

/// Makes a struct that `message!` has declared a message by itself.
macro_rules! top_level {
    ($message:ident, $flexible_from:expr) => {
        impl crate::message::Message for $message {
            fn decode(
                reader: &mut crate::reader::Reader<'_>,
                version: i16,
            ) -> Result<Self, crate::reader::DecodeError> {
                crate::wire::Wire::take(reader, crate::wire::Form::of(version, $flexible_from))
            }

            fn encode(&self, into: &mut Vec<u8>, version: i16) {
                crate::wire::Wire::put(self, into, crate::wire::Form::of(version, $flexible_from));
            }
        }
    };
}

/// Declares a struct of the protocol: its fields in the order of the wire, their defaults and versions. How to read
/// it stands at the root of the crate.
macro_rules! message {
    (
        $(#[$attribute:meta])*
        pub struct $name:ident {
            $($field:ident: $type:ty $(= $default:expr)? $(, in $versions:expr)? $(, null $null:expr)?;)*
        }
        $(tagged {
            $($tag:literal => $tagged:ident: $tagged_type:ty $(= $tagged_default:expr)?
                $(, in $tagged_versions:expr)?;)+
        })?
    ) => {
        #[doc = concat!("`", stringify!($name), "` of the schema.")]
        $(#[$attribute])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $name {
            $(
                #[doc = or!($(concat!("In versions `", stringify!($versions), "`."))?, "In all versions.")]
                pub $field: $type,
            )*
            $($(
                #[doc = concat!("Tagged field ", $tag, ".")]
                pub $tagged: $tagged_type,
            )+)?
        }

        impl Default for $name {
            fn default() -> Self {
                Self {
                    $($field: or!($($default)?, Default::default()),)*
                    $($($tagged: or!($($tagged_default)?, Default::default()),)+)?
                }
            }
        }

        #[allow(unused_variables, unused_mut, reason = "there are structs without fields")]
        impl crate::wire::Wire for $name {
            fn take(
                reader: &mut crate::reader::Reader<'_>,
                form: crate::wire::Form,
            ) -> Result<Self, crate::reader::DecodeError> {
                let mut this = Self::default();
                $(if has!(form $(, $versions)?) {
                    this.$field = crate::wire::Wire::take(reader, form.with_null(has!(form $(, $null)?)))?;
                })*
                if form.flexible {
                    let count = reader.uvarint()?;
                    for _ in 0..count {
                        let (tag, mut value) = reader.tagged()?;
                        match tag {
                            $($($tag if has!(form $(, $tagged_versions)?) => {
                                this.$tagged = crate::wire::Wire::take(&mut value, form.with_null(true))?;
                            })+)?
                            _ => {}
                        }
                        reader.end_tagged(&value);
                    }
                }
                Ok(this)
            }

            fn put(&self, into: &mut Vec<u8>, form: crate::wire::Form) {
                $(if has!(form $(, $versions)?) {
                    crate::wire::Wire::put(&self.$field, into, form.with_null(has!(form $(, $null)?)));
                })*
                if form.flexible {
                    let mut tags = crate::wire::Tags::default();
                    $($(if has!(form $(, $tagged_versions)?) {
                        let default: $tagged_type = or!($($tagged_default)?, Default::default());
                        if self.$tagged != default {
                            tags.push($tag, &self.$tagged, form.with_null(true));
                        }
                    })+)?
                    tags.put(into);
                }
            }
        }

        /// One byte says whether there is one.
        impl crate::wire::Nullable for $name {
            fn take_nullable(
                reader: &mut crate::reader::Reader<'_>,
                form: crate::wire::Form,
            ) -> Result<Option<Self>, crate::reader::DecodeError> {
                let there = <i8 as crate::wire::Wire>::take(reader, form)? >= 0;
                there.then(|| crate::wire::Wire::take(reader, form)).transpose()
            }

            fn put_null(into: &mut Vec<u8>, form: crate::wire::Form) {
                crate::wire::Wire::put(&-1_i8, into, form);
            }

            fn put_some(&self, into: &mut Vec<u8>, form: crate::wire::Form) {
                crate::wire::Wire::put(&1_i8, into, form);
                crate::wire::Wire::put(self, into, form);
            }
        }

        #[cfg(test)]
        #[allow(unused_variables, unused_mut, reason = "there are structs without fields")]
        impl crate::sample::Sample for $name {
            fn sample(random: &mut crate::sample::Random, form: crate::wire::Form) -> Self {
                let mut this = Self::default();
                $(if has!(form $(, $versions)?) {
                    this.$field = crate::sample::Sample::sample(random, form.with_null(has!(form $(, $null)?)));
                })*
                $($(if form.flexible && has!(form $(, $tagged_versions)?) {
                    this.$tagged = crate::sample::Sample::sample(random, form.with_null(true));
                })+)?
                this
            }
        }
    };
}

/// The first if it is there, otherwise the second.
macro_rules! or {
    (, $otherwise:expr) => {
        $otherwise
    };
    ($value:expr, $otherwise:expr) => {
        $value
    };
}

/// Whether the version is among those, which are all if none are named.
macro_rules! has {
    ($form:ident) => {
        true
    };
    ($form:ident, $versions:expr) => {
        std::ops::RangeBounds::contains(&($versions), &$form.version)
    };
}
