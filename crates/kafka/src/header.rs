//! What requests and responses begin with, before their bodies.

use crate::reader::{DecodeError, Reader};
use crate::registry;
use crate::wire::{Form, Wire, put_str, take_str};

/// The API whose responses have the plain header in all versions: who asks does not know yet what the broker can.
const API_VERSIONS: i16 = 18;

/// What a request begins with, in versions 1 and 2 of the header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestHeader {
    /// Number of the API.
    pub api_key: i16,
    /// Version of the API.
    pub api_version: i16,
    /// The response brings it back.
    pub correlation_id: i32,
    /// Who says they ask.
    pub client_id: Option<String>,
}

impl RequestHeader {
    /// Reads the header of a frame without its length, and returns it with the body. Of an API nobody knows only the
    /// first eight bytes are read.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn parse(frame: &[u8]) -> Result<(Self, &[u8]), DecodeError> {
        let mut reader = Reader::new(frame);
        let plain = Form::of(0, i16::MAX);
        let mut header = Self {
            api_key: Wire::take(&mut reader, plain)?,
            api_version: Wire::take(&mut reader, plain)?,
            correlation_id: Wire::take(&mut reader, plain)?,
            client_id: None,
        };
        if let Some(api) = registry::find(header.api_key) {
            header.client_id = take_str(&mut reader, plain)?.map(str::to_owned);
            if header.api_version >= api.flexible_from {
                reader.skip_tags()?;
            }
        }
        Ok((header, reader.rest()))
    }

    /// Appends it in the form that [`Self::parse`] reads.
    pub fn put(&self, into: &mut Vec<u8>) {
        let plain = Form::of(0, i16::MAX);
        self.api_key.put(into, plain);
        self.api_version.put(into, plain);
        self.correlation_id.put(into, plain);
        if let Some(api) = registry::find(self.api_key) {
            match &self.client_id {
                Some(client_id) => put_str(client_id, into, plain),
                None => (-1_i16).put(into, plain),
            }
            if self.api_version >= api.flexible_from {
                into.push(0);
            }
        }
    }
}

/// Appends the header of the response to such a request.
pub fn put_response_header(correlation_id: i32, api_key: i16, api_version: i16, into: &mut Vec<u8>) {
    into.extend_from_slice(&correlation_id.to_be_bytes());
    if has_tags(api_key, api_version) {
        into.push(0);
    }
}

/// Reads the header of a response to such a request: returns the correlation id and the body.
///
/// # Errors
/// [`DecodeError`].
pub fn parse_response_header(
    frame: &[u8],
    api_key: i16,
    api_version: i16,
) -> Result<(i32, &[u8]), DecodeError> {
    let mut reader = Reader::new(frame);
    let correlation_id = i32::from_be_bytes(reader.array()?);
    if has_tags(api_key, api_version) {
        reader.skip_tags()?;
    }
    Ok((correlation_id, reader.rest()))
}

/// Whether a response has version 1 of the header (KIP-482).
fn has_tags(api_key: i16, api_version: i16) -> bool {
    api_key != API_VERSIONS && registry::find(api_key).is_some_and(|api| api_version >= api.flexible_from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(api_key: i16, api_version: i16) -> RequestHeader {
        let client_id = Some("me".to_owned());
        RequestHeader { api_key, api_version, correlation_id: 7, client_id }
    }

    #[test]
    fn the_header_has_tags_where_the_api_has() {
        for (header, bytes) in [
            (header(3, 8), b"\0\x03\0\x08\0\0\0\x07\0\x02me".as_slice()),
            (header(3, 9), b"\0\x03\0\x09\0\0\0\x07\0\x02me\0"),
            (header(18, 99), b"\0\x12\0\x63\0\0\0\x07\0\x02me\0"),
            (header(17, 1), b"\0\x11\0\x01\0\0\0\x07\0\x02me"),
            (RequestHeader { client_id: None, ..header(0, 3) }, b"\0\0\0\x03\0\0\0\x07\xFF\xFF"),
        ] {
            let mut put = Vec::new();
            header.put(&mut put);
            assert_eq!(put, bytes);
            for end in 0..bytes.len() {
                assert_eq!(RequestHeader::parse(&bytes[..end]), Err(DecodeError::Truncated));
            }
            put.push(0xAB);
            assert_eq!(RequestHeader::parse(&put), Ok((header, [0xAB].as_slice())));
        }
    }

    #[test]
    fn of_an_unknown_api_only_the_first_bytes_are_read() {
        let bytes = b"\x7F\0\0\x03\0\0\0\x07\xFF\x00rest";
        let (header, rest) = RequestHeader::parse(bytes).unwrap();
        assert_eq!((header.api_key, header.correlation_id, header.client_id), (0x7F00, 7, None));
        assert_eq!(rest, b"\xFF\x00rest");
    }

    #[test]
    fn unknown_tags_are_skipped() {
        let (_, rest) = RequestHeader::parse(b"\0\x03\0\x09\0\0\0\x07\0\0\x01\x05\x02ab!").unwrap();
        assert_eq!(rest, b"!");
    }

    #[test]
    fn responses_have_tags_where_the_api_has_but_for_api_versions() {
        for (api_key, api_version, bytes) in
            [(3, 8, [0, 0, 0, 7].as_slice()), (3, 9, &[0, 0, 0, 7, 0]), (18, 4, &[0, 0, 0, 7])]
        {
            let mut put = Vec::new();
            put_response_header(7, api_key, api_version, &mut put);
            assert_eq!(put, bytes);
            put.push(1);
            assert_eq!(parse_response_header(&put, api_key, api_version), Ok((7, [1].as_slice())));
        }
    }
}
