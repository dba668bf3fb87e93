//! Wire encoding of each protocol type, plain and compact (KIP-482).
//!
//! Flexible versions store lengths as varints plus one, and end structs with tagged fields. Each type implements both
//! encodings, so message definitions do not depend on the version.

use crate::reader::{DecodeError, Reader, put_uvarint};
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
pub(crate) trait Wire: Sized {
    fn take(reader: &mut Reader<'_>, form: Form) -> Result<Self, DecodeError>;

    fn put(&self, into: &mut Vec<u8>, form: Form);
}

/// A type with an encoding for null, used by [`Option`].
pub(crate) trait Nullable: Wire + Default {
    fn take_nullable(reader: &mut Reader<'_>, form: Form) -> Result<Option<Self>, DecodeError>;

    fn put_null(into: &mut Vec<u8>, form: Form);

    /// Encodes the value where null would also be possible.
    fn put_some(&self, into: &mut Vec<u8>, form: Form) {
        self.put(into, form);
    }
}

impl<T: Nullable> Wire for Option<T> {
    fn take(reader: &mut Reader<'_>, form: Form) -> Result<Self, DecodeError> {
        let value = T::take_nullable(reader, form)?;
        if value.is_none() && !form.nullable { Err(UNEXPECTED_NULL) } else { Ok(value) }
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

/// Reads a string without copying it.
pub(crate) fn take_str<'a>(reader: &mut Reader<'a>, form: Form) -> Result<Option<&'a str>, DecodeError> {
    let len = if form.flexible { compact_len(reader)? } else { plain_len(i16::take(reader, form)?.into())? };
    let Some(len) = len else { return Ok(None) };
    let text = std::str::from_utf8(reader.bytes(len)?);
    text.map(Some).map_err(|_| DecodeError::Malformed("a string is not UTF-8"))
}

/// The plain encoding allows at most 32,767 bytes. A longer string is truncated, so that the message stays well-formed.
pub(crate) fn put_str(text: &str, into: &mut Vec<u8>, form: Form) {
    if form.flexible {
        put_compact_len(text.len(), into);
        into.extend_from_slice(text.as_bytes());
    } else {
        let text = &text[..text.floor_char_boundary(i16::MAX as usize)];
        (text.len() as u16).cast_signed().put(into, form);
        into.extend_from_slice(text.as_bytes());
    }
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
    fn take(reader: &mut Reader<'_>, form: Form) -> Result<Self, DecodeError> {
        Self::take_nullable(reader, form)?.ok_or(UNEXPECTED_NULL)
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

/// Reads the length of bytes or of an array; `None` is null.
fn take_len(reader: &mut Reader<'_>, form: Form) -> Result<Option<usize>, DecodeError> {
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
