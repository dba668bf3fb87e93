//! The message traits, and the `api!` macro, with which each file under `api/` declares its API.
//!
//! A declaration expands into structs, their defaults, and both directions of the codec, so that keys, versions and
//! fields are written down only once. The syntax is described at the root of the crate.

use std::fmt::Debug;
use std::ops::RangeInclusive;

use crate::reader::{DecodeError, Reader};
use crate::steps::{Progress, Steps};

/// Body of a request or a response, without frame and header.
pub trait Message: Sized + Default + Clone + Debug + PartialEq {
    /// Decodes a message from the front of `reader`. Fields that the version does not have get their defaults; unknown
    /// tagged fields are skipped.
    ///
    /// # Errors
    /// [`DecodeError`] if the input is truncated or malformed.
    fn decode(reader: &mut Reader<'_>, version: i16) -> Result<Self, DecodeError>;

    /// Continues to decode a message, see [`Decoder`](crate::Decoder).
    #[doc(hidden)]
    fn decode_some(
        &mut self,
        reader: &mut Reader<'_>,
        version: i16,
        steps: &mut Steps,
    ) -> Result<Progress, DecodeError>;

    /// Appends the message in the encoding of `version`. Fields that the version does not have are omitted; a null that
    /// the version does not allow is encoded as empty.
    fn encode(&self, into: &mut Vec<u8>, version: i16);

    /// How long the client is throttled, ms, if the message has such a field (KIP-219).
    fn throttle_time_ms(&mut self) -> Option<&mut i32> {
        None
    }
}

/// A request message, its response type, and what the protocol says about the API.
pub trait Request: Message {
    /// API key.
    const KEY: i16;
    /// Kafka's name without suffix, for example `ListOffsets`.
    const NAME: &'static str;
    /// Versions with a codec, which are all that Kafka 4.3 serves.
    const VERSIONS: RangeInclusive<i16>;
    /// Lowest version that a broker announces.
    const ANNOUNCED_FROM: i16;
    /// First version with compact lengths and tagged fields (KIP-482), also in headers; `i16::MAX` if none has them.
    const FLEXIBLE_FROM: i16;
    /// The response message.
    type Response: Message;
}

/// Declares an API: its key and versions, and its request and response with the structs that each of them uses. The
/// syntax is described at the root of the crate.
macro_rules! api {
    (
        $api:ident, key $key:literal, versions $versions:expr
            $(, flexible $flexible_from:literal..)? $(, announced $announced_from:literal..)?;

        request $request:ident $request_fields:tt $(tagged $request_tagged:tt)?
        $(struct $request_struct:ident $request_struct_fields:tt $(tagged $request_struct_tagged:tt)?)*

        response $response:ident $response_fields:tt $(tagged $response_tagged:tt)?
        $(struct $response_struct:ident $response_struct_fields:tt $(tagged $response_struct_tagged:tt)?)*
    ) => {
        impl crate::message::Request for $request {
            const KEY: i16 = $key;
            const NAME: &'static str = stringify!($api);
            const VERSIONS: std::ops::RangeInclusive<i16> = $versions;
            const ANNOUNCED_FROM: i16 = value_or!($($announced_from)?, *Self::VERSIONS.start());
            const FLEXIBLE_FROM: i16 = value_or!($($flexible_from)?, i16::MAX);
            type Response = $response;
        }

        impl_message!($request, <$request as crate::message::Request>::FLEXIBLE_FROM);
        impl_message!($response, <$request as crate::message::Request>::FLEXIBLE_FROM);

        fields!($request $request_fields $(tagged $request_tagged)?);
        $(fields!($request_struct $request_struct_fields $(tagged $request_struct_tagged)?);)*
        fields!($response $response_fields $(tagged $response_tagged)?);
        $(fields!($response_struct $response_struct_fields $(tagged $response_struct_tagged)?);)*
    };
}

/// Implements [`Message`] for a struct that `fields!` declares.
macro_rules! impl_message {
    ($message:ident, $flexible_from:expr) => {
        impl crate::message::Message for $message {
            fn decode(
                reader: &mut crate::reader::Reader<'_>,
                version: i16,
            ) -> Result<Self, crate::reader::DecodeError> {
                crate::wire::Wire::take(reader, crate::wire::Form::of(version, $flexible_from))
            }

            fn decode_some(
                &mut self,
                reader: &mut crate::reader::Reader<'_>,
                version: i16,
                steps: &mut crate::steps::Steps,
            ) -> Result<crate::steps::Progress, crate::reader::DecodeError> {
                let form = crate::wire::Form::of(version, $flexible_from);
                crate::wire::Wire::take_some(self, reader, form, steps)
            }

            fn encode(&self, into: &mut Vec<u8>, version: i16) {
                crate::wire::Wire::put(self, into, crate::wire::Form::of(version, $flexible_from));
            }

            fn throttle_time_ms(&mut self) -> Option<&mut i32> {
                self.throttle_time_field()
            }
        }
    };
}

/// Declares a struct of the protocol: fields in wire order, with defaults and versions.
macro_rules! fields {
    (
        $name:ident {
            $($field:ident: $type:ty $(= $default:expr)? $(, in $versions:expr)? $(, null $null:expr)?;)*
        }
        $(tagged {
            $($tag:literal => $tagged:ident: $tagged_type:ty $(= $tagged_default:expr)?
                $(, in $tagged_versions:expr)?;)+
        })?
    ) => {
        #[doc = concat!("`", stringify!($name), "` of the schema.")]
        #[derive(Clone, Debug, PartialEq)]
        pub struct $name {
            $(
                #[doc = value_or!($(concat!("In versions `", stringify!($versions), "`."))?, "In all versions.")]
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
                    $($field: value_or!($($default)?, Default::default()),)*
                    $($($tagged: value_or!($($tagged_default)?, Default::default()),)+)?
                }
            }
        }

        impl $name {
            #[allow(dead_code, unreachable_code, unused_macros, reason = "most structs are not whole messages")]
            fn throttle_time_field(&mut self) -> Option<&mut i32> {
                $(throttle_time!(self, $field);)*
                None
            }

            /// Decodes the tagged fields at the end of the struct, if the version has any.
            #[allow(unused_mut, reason = "there are structs without tagged fields")]
            fn take_tagged(
                &mut self,
                reader: &mut crate::reader::Reader<'_>,
                form: crate::wire::Form,
            ) -> Result<(), crate::reader::DecodeError> {
                if !form.flexible {
                    return Ok(());
                }
                for _ in 0..reader.tag_count()? {
                    let (tag, mut value) = reader.tagged()?;
                    match tag {
                        $($($tag if in_version!(form $(, $tagged_versions)?) => {
                            self.$tagged = crate::wire::Wire::take(&mut value, form.with_null(true))?;
                        })+)?
                        _ => {}
                    }
                    reader.end_tagged(&value);
                }
                Ok(())
            }
        }

        #[allow(unused_mut, reason = "there are structs without tagged fields")]
        #[allow(unused_assignments, reason = "no field follows the last")]
        impl crate::wire::Wire for $name {
            const HAS_ARRAYS: bool = false $(|| <$type as crate::wire::Wire>::HAS_ARRAYS)*;

            fn take(
                reader: &mut crate::reader::Reader<'_>,
                form: crate::wire::Form,
            ) -> Result<Self, crate::reader::DecodeError> {
                let mut this = Self::default();
                $(if in_version!(form $(, $versions)?) {
                    this.$field = crate::wire::Wire::take(reader, form.with_null(in_version!(form $(, $null)?)))?;
                })*
                this.take_tagged(reader, form)?;
                Ok(this)
            }

            fn take_some(
                &mut self,
                reader: &mut crate::reader::Reader<'_>,
                form: crate::wire::Form,
                steps: &mut crate::steps::Steps,
            ) -> Result<crate::steps::Progress, crate::reader::DecodeError> {
                if !<Self as crate::wire::Wire>::HAS_ARRAYS {
                    *self = crate::wire::Wire::take(reader, form)?;
                    return Ok(crate::steps::Progress::Complete);
                }
                // Number of the field at which the last step has stopped, and of the current one.
                let begins_at = steps.resume().unwrap_or(0);
                let mut number = 0;
                $({
                    if number >= begins_at && in_version!(form $(, $versions)?) {
                        let form = form.with_null(in_version!(form $(, $null)?));
                        let progress = crate::wire::Wire::take_some(&mut self.$field, reader, form, steps)?;
                        if progress == crate::steps::Progress::Partial {
                            return Ok(steps.stop(number));
                        }
                    }
                    number += 1;
                })*
                self.take_tagged(reader, form)?;
                Ok(crate::steps::Progress::Complete)
            }

            fn put(&self, into: &mut Vec<u8>, form: crate::wire::Form) {
                $(if in_version!(form $(, $versions)?) {
                    crate::wire::Wire::put(&self.$field, into, form.with_null(in_version!(form $(, $null)?)));
                })*
                if form.flexible {
                    let mut tags = crate::wire::Tags::default();
                    $($(if in_version!(form $(, $tagged_versions)?) {
                        let default: $tagged_type = value_or!($($tagged_default)?, Default::default());
                        if self.$tagged != default {
                            tags.push($tag, &self.$tagged, form.with_null(true));
                        }
                    })+)?
                    tags.put(into);
                }
            }
        }

        /// One byte precedes the struct: negative for null.
        impl crate::wire::Nullable for $name {
            fn take_nullable(
                reader: &mut crate::reader::Reader<'_>,
                form: crate::wire::Form,
            ) -> Result<Option<Self>, crate::reader::DecodeError> {
                let is_present = <i8 as crate::wire::Wire>::take(reader, form)? >= 0;
                is_present.then(|| crate::wire::Wire::take(reader, form)).transpose()
            }

            fn take_nullable_some(
                this: &mut Option<Self>,
                reader: &mut crate::reader::Reader<'_>,
                form: crate::wire::Form,
                steps: &mut crate::steps::Steps,
            ) -> Result<crate::steps::Progress, crate::reader::DecodeError> {
                // A struct that the last step has begun is past its first byte.
                if !steps.is_inside() {
                    let is_present = <i8 as crate::wire::Wire>::take(reader, form)? >= 0;
                    *this = is_present.then(Self::default);
                }
                match this {
                    Some(value) => crate::wire::Wire::take_some(value, reader, form, steps),
                    None => Ok(crate::steps::Progress::Complete),
                }
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
        impl crate::sample::Sample for $name {
            fn sample(random: &mut crate::sample::Random, form: crate::wire::Form) -> Self {
                let mut this = Self::default();
                $(if in_version!(form $(, $versions)?) {
                    this.$field = crate::sample::Sample::sample(random, form.with_null(in_version!(form $(, $null)?)));
                })*
                $($(if form.flexible && in_version!(form $(, $tagged_versions)?) {
                    this.$tagged = crate::sample::Sample::sample(random, form.with_null(true));
                })+)?
                this
            }
        }
    };
}

/// Returns the field from the function if it is the throttle time.
macro_rules! throttle_time {
    ($this:ident, throttle_time_ms) => {
        return Some(&mut $this.throttle_time_ms)
    };
    ($this:ident, $field:ident) => {};
}

/// The first expression if there is one, otherwise the second.
macro_rules! value_or {
    (, $otherwise:expr) => {
        $otherwise
    };
    ($value:expr, $otherwise:expr) => {
        $value
    };
}

/// Whether the version is in the range; true if there is no range.
macro_rules! in_version {
    ($form:ident) => {
        true
    };
    ($form:ident, $versions:expr) => {
        std::ops::RangeBounds::contains(&($versions), &$form.version)
    };
}
