//! Wire encoding of each protocol type, plain and compact (KIP-482).
//!
//! Flexible versions store lengths as varints plus one, and end structs with tagged fields. Each type implements both
//! encodings, so message definitions do not depend on the version.

use crate::reader::{DecodeError, Reader, put_uvarint};
use crate::steps::{Progress, Steps};
use crate::uuid::Uuid;

/// What the encoding of a value depends on besides the value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Form {
    pub(crate) version: i16,
    /// Lengths are compact, and structs end with tagged fields.
    pub(crate) flexible: bool,
    /// Whether a nullable field may be null in this version.
    pub(crate) nullable: bool,
}

impl Form {
    pub(crate) const fn of(version: i16, flexible_from: i16) -> Self {
        Self { version, flexible: version >= flexible_from, nullable: true }
    }

    pub(crate) const fn with_null(self, nullable: bool) -> Self {
        Self { nullable, ..self }
    }
}

/// A type of the protocol.
pub(crate) trait Wire: Sized + Default {
    /// Whether values have arrays, so that they are decoded in several steps.
    const HAS_ARRAYS: bool = false;

    fn take(reader: &mut Reader<'_>, form: Form) -> Result<Self, DecodeError>;

    /// Decodes as [`Wire::take`] does, in steps, into what was the default before the first. See `steps.rs`.
    fn take_some(
        &mut self,
        reader: &mut Reader<'_>,
        form: Form,
        _steps: &mut Steps,
    ) -> Result<Progress, DecodeError> {
        *self = Self::take(reader, form)?;
        Ok(Progress::Complete)
    }

    fn put(&self, into: &mut Vec<u8>, form: Form);
}

/// A type with an encoding for null, used by [`Option`].
pub(crate) trait Nullable: Wire {
    fn take_nullable(reader: &mut Reader<'_>, form: Form) -> Result<Option<Self>, DecodeError>;

    /// Decodes as [`Nullable::take_nullable`] does, in steps.
    fn take_nullable_some(
        this: &mut Option<Self>,
        reader: &mut Reader<'_>,
        form: Form,
        _steps: &mut Steps,
    ) -> Result<Progress, DecodeError> {
        *this = Self::take_nullable(reader, form)?;
        Ok(Progress::Complete)
    }

    fn put_null(into: &mut Vec<u8>, form: Form);

    /// Encodes the value where null would also be possible.
    fn put_some(&self, into: &mut Vec<u8>, form: Form) {
        self.put(into, form);
    }
}

impl<T: Nullable> Wire for Option<T> {
    const HAS_ARRAYS: bool = T::HAS_ARRAYS;

    fn take(reader: &mut Reader<'_>, form: Form) -> Result<Self, DecodeError> {
        let value = T::take_nullable(reader, form)?;
        if value.is_none() && !form.nullable { Err(UNEXPECTED_NULL) } else { Ok(value) }
    }

    fn take_some(
        &mut self,
        reader: &mut Reader<'_>,
        form: Form,
        steps: &mut Steps,
    ) -> Result<Progress, DecodeError> {
        let progress = T::take_nullable_some(self, reader, form, steps)?;
        if self.is_none() && !form.nullable { Err(UNEXPECTED_NULL) } else { Ok(progress) }
    }

    fn put(&self, into: &mut Vec<u8>, form: Form) {
        match self {
            Some(value) => value.put_some(into, form),
            None if form.nullable => T::put_null(into, form),
            None => T::default().put(into, form),
        }
    }
}

const UNEXPECTED_NULL: DecodeError = DecodeError::Malformed("a non-nullable field is null");

macro_rules! numbers {
    ($($number:ty)*) => {
        $(impl Wire for $number {
            fn take(reader: &mut Reader<'_>, _: Form) -> Result<Self, DecodeError> {
                reader.array().map(Self::from_be_bytes)
            }

            fn put(&self, into: &mut Vec<u8>, _: Form) {
                into.extend_from_slice(&self.to_be_bytes());
            }
        })*
    };
}

numbers!(i8 i16 u16 i32 i64 f64);

impl Wire for bool {
    fn take(reader: &mut Reader<'_>, _: Form) -> Result<Self, DecodeError> {
        let [byte] = reader.array()?;
        Ok(byte != 0)
    }

    fn put(&self, into: &mut Vec<u8>, _: Form) {
        into.push(u8::from(*self));
    }
}

impl Wire for Uuid {
    fn take(reader: &mut Reader<'_>, _: Form) -> Result<Self, DecodeError> {
        reader.array().map(Self)
    }

    fn put(&self, into: &mut Vec<u8>, _: Form) {
        into.extend_from_slice(&self.0);
    }
}

impl Wire for String {
    fn take(reader: &mut Reader<'_>, form: Form) -> Result<Self, DecodeError> {
        Self::take_nullable(reader, form)?.ok_or(UNEXPECTED_NULL)
    }

    fn put(&self, into: &mut Vec<u8>, form: Form) {
        put_str(self, into, form);
    }
}

impl Nullable for String {
    fn take_nullable(reader: &mut Reader<'_>, form: Form) -> Result<Option<Self>, DecodeError> {
        take_str(reader, form).map(|text| text.map(str::to_owned))
    }

    fn put_null(into: &mut Vec<u8>, form: Form) {
        if form.flexible { into.push(0) } else { (-1_i16).put(into, form) }
    }
}

/// Most bytes of a string: what the plain encoding allows, and Kafka in both.
const STRING_BYTES_MAX: usize = i16::MAX as usize;

/// Reads a string without copying it.
pub(crate) fn take_str<'a>(reader: &mut Reader<'a>, form: Form) -> Result<Option<&'a str>, DecodeError> {
    let len = if form.flexible { compact_len(reader)? } else { plain_len(i16::take(reader, form)?.into())? };
    let Some(len) = len else { return Ok(None) };
    if len > STRING_BYTES_MAX {
        return Err(DecodeError::Malformed("a string exceeds 32,767 bytes"));
    }
    let text = std::str::from_utf8(reader.bytes(len)?);
    text.map(Some).map_err(|_| DecodeError::Malformed("a string is not UTF-8"))
}

/// A string that is too long is truncated, so that the message stays well-formed.
pub(crate) fn put_str(text: &str, into: &mut Vec<u8>, form: Form) {
    let text = &text[..text.floor_char_boundary(STRING_BYTES_MAX)];
    if form.flexible {
        put_compact_len(text.len(), into);
    } else {
        (text.len() as u16).cast_signed().put(into, form);
    }
    into.extend_from_slice(text.as_bytes());
}

impl Wire for Vec<u8> {
    fn take(reader: &mut Reader<'_>, form: Form) -> Result<Self, DecodeError> {
        Self::take_nullable(reader, form)?.ok_or(UNEXPECTED_NULL)
    }

    fn put(&self, into: &mut Vec<u8>, form: Form) {
        put_len(self.len(), into, form);
        into.extend_from_slice(self);
    }
}

impl Nullable for Vec<u8> {
    fn take_nullable(reader: &mut Reader<'_>, form: Form) -> Result<Option<Self>, DecodeError> {
        take_bytes(reader, form).map(|bytes| bytes.map(<[u8]>::to_vec))
    }

    fn put_null(into: &mut Vec<u8>, form: Form) {
        put_null_len(into, form);
    }
}

/// Reads bytes without copying them.
pub(crate) fn take_bytes<'a>(reader: &mut Reader<'a>, form: Form) -> Result<Option<&'a [u8]>, DecodeError> {
    take_len(reader, form)?.map(|len| reader.bytes(len)).transpose()
}

impl<T: Wire> Wire for Vec<T> {
    const HAS_ARRAYS: bool = true;

    fn take(reader: &mut Reader<'_>, form: Form) -> Result<Self, DecodeError> {
        Self::take_nullable(reader, form)?.ok_or(UNEXPECTED_NULL)
    }

    fn take_some(
        &mut self,
        reader: &mut Reader<'_>,
        form: Form,
        steps: &mut Steps,
    ) -> Result<Progress, DecodeError> {
        let left = match steps.resume() {
            Some(left) => left,
            None => begin_array(self, reader, form)?.ok_or(UNEXPECTED_NULL)?,
        };
        take_elements(self, left, reader, form, steps)
    }

    fn put(&self, into: &mut Vec<u8>, form: Form) {
        put_len(self.len(), into, form);
        for element in self {
            element.put(into, form);
        }
    }
}

impl<T: Wire> Nullable for Vec<T> {
    fn take_nullable(reader: &mut Reader<'_>, form: Form) -> Result<Option<Self>, DecodeError> {
        take_array(reader, form, |reader| T::take(reader, form))
    }

    fn take_nullable_some(
        this: &mut Option<Self>,
        reader: &mut Reader<'_>,
        form: Form,
        steps: &mut Steps,
    ) -> Result<Progress, DecodeError> {
        let resumed = steps.resume();
        let elements = this.get_or_insert_default();
        let left = match resumed {
            Some(left) => Some(left),
            None => begin_array(elements, reader, form)?,
        };
        let Some(left) = left else {
            *this = None;
            return Ok(Progress::Complete);
        };
        take_elements(elements, left, reader, form, steps)
    }

    fn put_null(into: &mut Vec<u8>, form: Form) {
        put_null_len(into, form);
    }
}

/// Reads an array with `take` for each element. Each element takes at least one byte, so the count cannot exceed the
/// remaining bytes; the initial capacity never exceeds what those bytes could fill.
pub(crate) fn take_array<'a, T>(
    reader: &mut Reader<'a>,
    form: Form,
    mut take: impl FnMut(&mut Reader<'a>) -> Result<T, DecodeError>,
) -> Result<Option<Vec<T>>, DecodeError> {
    let Some(count) = take_len(reader, form)? else { return Ok(None) };
    if count > reader.remaining() {
        return Err(DecodeError::Truncated);
    }
    reader.charge_array(count, size_of::<T>())?;
    let mut elements = Vec::with_capacity(count.min(reader.remaining() / size_of::<T>().max(1)));
    for _ in 0..count {
        elements.push(take(reader)?);
    }
    Ok(Some(elements))
}

/// Begins an array that is decoded in steps: its number of elements, `None` if it is null. Room for all of them is
/// reserved, which the array budget bounds: memory that no element is written to is not used, and moving megabytes
/// while the array grows would take too long.
fn begin_array<T>(
    elements: &mut Vec<T>,
    reader: &mut Reader<'_>,
    form: Form,
) -> Result<Option<usize>, DecodeError> {
    let Some(count) = take_len(reader, form)? else { return Ok(None) };
    if count > reader.remaining() {
        return Err(DecodeError::Truncated);
    }
    reader.charge_array(count, size_of::<T>())?;
    elements.reserve_exact(count);
    Ok(Some(count))
}

/// Decodes the last `left` elements of an array, or as many as the step has room for.
fn take_elements<T: Wire>(
    elements: &mut Vec<T>,
    mut left: usize,
    reader: &mut Reader<'_>,
    form: Form,
    steps: &mut Steps,
) -> Result<Progress, DecodeError> {
    let mut is_inside = steps.is_inside();
    while left > 0 {
        if steps.is_over() {
            return Ok(steps.stop(left));
        }
        if T::HAS_ARRAYS {
            if !std::mem::take(&mut is_inside) {
                elements.push(T::default());
                steps.spend(0);
            }
            let Some(newest) = elements.last_mut() else { return Err(DecodeError::Truncated) };
            if newest.take_some(reader, form, steps)? == Progress::Partial {
                return Ok(steps.stop(left));
            }
        } else {
            let before = reader.remaining();
            elements.push(T::take(reader, form)?);
            steps.spend(before - reader.remaining());
        }
        left -= 1;
    }
    Ok(Progress::Complete)
}

/// Reads the length of bytes or of an array; `None` is null.
pub(crate) fn take_len(reader: &mut Reader<'_>, form: Form) -> Result<Option<usize>, DecodeError> {
    if form.flexible { compact_len(reader) } else { plain_len(i32::take(reader, form)?) }
}

fn plain_len(len: i32) -> Result<Option<usize>, DecodeError> {
    match len {
        -1 => Ok(None),
        len => usize::try_from(len).map(Some).map_err(|_| DecodeError::Malformed("a length is negative")),
    }
}

fn compact_len(reader: &mut Reader<'_>) -> Result<Option<usize>, DecodeError> {
    Ok(reader.uvarint()?.checked_sub(1).map(|len| len as usize))
}

pub(crate) fn put_len(len: usize, into: &mut Vec<u8>, form: Form) {
    if form.flexible { put_compact_len(len, into) } else { (len as u32).cast_signed().put(into, form) }
}

fn put_compact_len(len: usize, into: &mut Vec<u8>) {
    put_uvarint(len as u32 + 1, into);
}

fn put_null_len(into: &mut Vec<u8>, form: Form) {
    if form.flexible { into.push(0) } else { (-1_i32).put(into, form) }
}

/// Tagged fields of a struct that differ from their defaults, ordered by tag.
#[derive(Debug, Default)]
pub(crate) struct Tags {
    count: u32,
    fields: Vec<u8>,
}

impl Tags {
    pub(crate) fn push(&mut self, tag: u32, value: &impl Wire, form: Form) {
        let mut bytes = Vec::new();
        value.put(&mut bytes, form);
        self.count += 1;
        put_uvarint(tag, &mut self.fields);
        put_uvarint(bytes.len() as u32, &mut self.fields);
        self.fields.append(&mut bytes);
    }

    pub(crate) fn put(&self, into: &mut Vec<u8>) {
        put_uvarint(self.count, into);
        into.extend_from_slice(&self.fields);
    }
}
