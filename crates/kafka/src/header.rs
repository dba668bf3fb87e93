//! Headers of requests and responses.
//!
//! A header tells which API and version the body has, so its encoding depends on fields that it contains itself.
//! Flexible versions (KIP-482) of an API add tagged fields to both headers. The client id has the plain encoding in all
//! request headers.

use crate::api;
use crate::api::api_versions::ApiVersionsRequest;
use crate::message::Request;
use crate::reader::{DecodeError, Reader};
use crate::wire::{Form, Wire, put_str, take_str};

/// A request header, version 1 or 2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestHeader {
    /// API key.
    pub api_key: i16,
    /// API version.
    pub api_version: i16,
    /// Repeated in the response header.
    pub correlation_id: i32,
    /// Client id, as set by the client.
    pub client_id: Option<String>,
}

impl RequestHeader {
    /// Parses the header of a frame without its length; returns it with the body. If the API is unknown, the client id
    /// is read if there is one, and tagged fields are part of the body: the API decides whether the header has any.
    ///
    /// # Errors
    /// [`DecodeError`] if the header is truncated or malformed.
    pub fn parse(frame: &[u8]) -> Result<(Self, &[u8]), DecodeError> {
        let mut reader = Reader::new(frame);
        let plain = Form::of(0, i16::MAX);
        let mut header = Self {
            api_key: Wire::take(&mut reader, plain)?,
            api_version: Wire::take(&mut reader, plain)?,
            correlation_id: Wire::take(&mut reader, plain)?,
            client_id: None,
        };
        let Some(api) = api::find(header.api_key) else {
            let mut after_client_id = reader.clone();
            if let Ok(Some(client_id)) = take_str(&mut after_client_id, plain) {
                header.client_id = Some(client_id.to_owned());
                reader = after_client_id;
            }
            return Ok((header, reader.rest()));
        };
        header.client_id = take_str(&mut reader, plain)?.map(str::to_owned);
        if header.api_version >= api.flexible_from {
            reader.skip_tags()?;
        }
        Ok((header, reader.rest()))
    }

    /// Appends the header in the encoding that [`Self::parse`] reads.
    pub fn put(&self, into: &mut Vec<u8>) {
        let plain = Form::of(0, i16::MAX);
        self.api_key.put(into, plain);
        self.api_version.put(into, plain);
        self.correlation_id.put(into, plain);
        let api = api::find(self.api_key);
        match &self.client_id {
            Some(client_id) => put_str(client_id, into, plain),
            None if api.is_some() => (-1_i16).put(into, plain),
            None => {}
        }
        if api.is_some_and(|api| self.api_version >= api.flexible_from) {
            into.push(0);
        }
    }
}

/// Appends the response header for a request.
pub fn put_response_header(correlation_id: i32, api_key: i16, api_version: i16, into: &mut Vec<u8>) {
    into.extend_from_slice(&correlation_id.to_be_bytes());
    if has_tags(api_key, api_version) {
        into.push(0);
    }
}

/// Parses the response header for a request; returns the correlation id and the body.
///
/// # Errors
/// [`DecodeError`] if the header is truncated or malformed.
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

/// Whether the response header has tagged fields (version 1, KIP-482). `ApiVersions` responses never do, because the
/// client does not know the broker's versions yet.
fn has_tags(api_key: i16, api_version: i16) -> bool {
    api_key != ApiVersionsRequest::KEY
        && api::find(api_key).is_some_and(|api| api_version >= api.flexible_from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(api_key: i16, api_version: i16) -> RequestHeader {
        let client_id = Some("me".to_owned());
        RequestHeader { api_key, api_version, correlation_id: 7, client_id }
    }

    #[test]
    fn request_header_has_tags_in_flexible_versions() {
        for (header, bytes) in [
            (header(3, 8), b"\0\x03\0\x08\0\0\0\x07\0\x02me".as_slice()),
            (header(3, 9), b"\0\x03\0\x09\0\0\0\x07\0\x02me\0"),
            (header(18, 99), b"\0\x12\0\x63\0\0\0\x07\0\x02me\0"),
            (header(47, 0), b"\0\x2F\0\0\0\0\0\x07\0\x02me"),
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
    fn header_of_an_unknown_api_needs_no_client_id() {
        for (tail, client_id, body) in [
            (b"\0\x02merest".as_slice(), Some("me"), b"rest".as_slice()),
            (b"\xFF\x00rest", None, b"\xFF\x00rest"),
            (b"\0\x09me", None, b"\0\x09me"),
            (b"", None, b""),
        ] {
            let bytes = [b"\x7F\0\0\x03\0\0\0\x07", tail].concat();
            let (header, rest) = RequestHeader::parse(&bytes).unwrap();
            assert_eq!((header.api_key, header.correlation_id), (0x7F00, 7));
            assert_eq!((header.client_id.as_deref(), rest), (client_id, body));
            let mut put = Vec::new();
            header.put(&mut put);
            assert_eq!(RequestHeader::parse(&put), Ok((header, [].as_slice())));
        }
    }

    #[test]
    fn unknown_tags_are_skipped() {
        let (_, rest) = RequestHeader::parse(b"\0\x03\0\x09\0\0\0\x07\0\0\x01\x05\x02ab!").unwrap();
        assert_eq!(rest, b"!");
    }

    #[test]
    fn response_header_has_tags_in_flexible_versions_except_api_versions() {
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
