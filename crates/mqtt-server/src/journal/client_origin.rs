//! Where the client of a session was when it last connected, and what it had proven, as a journal contains it: rules
//! depend on both, also while the client is away.

use std::net::IpAddr;
use std::sync::Arc;

use mainstem_security::{ApiKeyId, Proof};

use super::wire::{Damaged, Reader, put, put_bytes};

/// Flags: there is a proof, what it says, and whether it has a common name and an API key.
const HAS_PROOF: u8 = 1;
const IS_EXTERNAL: u8 = 2;
const HAS_COMMON_NAME: u8 = 4;
const HAS_API_KEY: u8 = 8;

/// Where a client was, and what it had proven.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClientOrigin {
    /// Name of the listener.
    pub(crate) listener: Option<Arc<str>>,
    pub(crate) address: Option<IpAddr>,
    pub(crate) proof: Option<Arc<Proof>>,
}

impl ClientOrigin {
    pub(super) fn put(&self, into: &mut Vec<u8>) {
        put_bytes(into, self.listener.as_deref().unwrap_or_default().as_bytes());
        match self.address {
            None => put_bytes(into, &[]),
            Some(IpAddr::V4(address)) => put_bytes(into, &address.octets()),
            Some(IpAddr::V6(address)) => put_bytes(into, &address.octets()),
        }
        let Some(proof) = &self.proof else { return into.push(0) };
        let common_name = proof.common_name.as_deref();
        into.push(
            HAS_PROOF
                | if proof.is_external { IS_EXTERNAL } else { 0 }
                | common_name.map_or(0, |_| HAS_COMMON_NAME)
                | proof.api_key.map_or(0, |_| HAS_API_KEY),
        );
        if let Some(common_name) = common_name {
            put_bytes(into, common_name.as_bytes());
        }
        put(into, proof.roles.len() as u64);
        for role in &proof.roles {
            put_bytes(into, role.as_bytes());
        }
        put(into, proof.expires_ms.map_or(0, |end_ms| end_ms.saturating_add(1)));
        if let Some(ApiKeyId(id)) = proof.api_key {
            put(into, id);
        }
    }

    pub(super) fn take(reader: &mut Reader<'_>) -> Result<Self, Damaged> {
        let listener = Some(reader.text()?).filter(|name| !name.is_empty()).map(Into::into);
        let address = match reader.bytes()? {
            [] => None,
            bytes => {
                let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
                Some(v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).map_err(|_| Damaged)?)
            }
        };
        let flags = reader.byte()?;
        if flags & HAS_PROOF == 0 {
            return Ok(Self { listener, address, proof: None });
        }
        let common_name = if flags & HAS_COMMON_NAME == 0 { None } else { Some(reader.text()?.into()) };
        let roles = (0..reader.number()?).map(|_| reader.text().map(Into::into)).collect::<Result<_, _>>()?;
        let expires_ms = reader.number()?.checked_sub(1);
        let is_external = flags & IS_EXTERNAL != 0;
        let api_key = (flags & HAS_API_KEY != 0).then(|| reader.number().map(ApiKeyId)).transpose()?;
        let proof = Some(Arc::new(Proof { is_external, common_name, roles, expires_ms, api_key }));
        Ok(Self { listener, address, proof })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_round_trip() {
        let proof = |common_name: Option<&str>, roles: &[&str], expires_ms| {
            Some(Arc::new(Proof {
                is_external: common_name.is_some(),
                common_name: common_name.map(Into::into),
                roles: roles.iter().map(|role| (*role).into()).collect(),
                expires_ms,
                api_key: expires_ms.map(|_| ApiKeyId(u64::MAX)),
            }))
        };
        for origin in [
            ClientOrigin::default(),
            ClientOrigin {
                listener: Some("mqtts".into()),
                address: Some([192, 0, 2, 1].into()),
                proof: proof(Some("press-7"), &[], None),
            },
            ClientOrigin {
                listener: None,
                address: Some("2001:db8::1".parse().unwrap()),
                proof: proof(None, &["ops", "pläne"], Some(1_700_000_000_000)),
            },
            ClientOrigin { proof: proof(Some(""), &[""], Some(0)), ..ClientOrigin::default() },
        ] {
            let mut bytes = Vec::new();
            origin.put(&mut bytes);
            let mut reader = Reader(&bytes);
            assert_eq!(ClientOrigin::take(&mut reader), Ok(origin));
            assert!(reader.is_empty());
            for len in 0..bytes.len() {
                assert_eq!(ClientOrigin::take(&mut Reader(&bytes[..len])), Err(Damaged), "cut at {len}");
            }
        }
    }

    #[test]
    fn an_address_of_another_length_is_damage() {
        assert_eq!(ClientOrigin::take(&mut Reader(&[0, 5, 1, 2, 3, 4, 5, 0])), Err(Damaged));
    }
}
