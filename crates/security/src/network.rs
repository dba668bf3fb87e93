//! Networks in CIDR notation.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use crate::error::SecurityError;

/// A network: an address and the number of its leading bits that count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Network {
    address: IpAddr,
    bits: u8,
}

impl Network {
    /// The network of one address.
    pub fn of_address(address: IpAddr) -> Self {
        let address = address.to_canonical();
        Self { address, bits: if address.is_ipv4() { 32 } else { 128 } }
    }

    /// Whether it contains an address. An IPv4 address mapped to IPv6 counts as IPv4.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(network), IpAddr::V4(address)) => u32::from(network) == masked_v4(address, self.bits),
            (IpAddr::V6(network), IpAddr::V6(address)) => {
                u128::from(network) == masked_v6(address, self.bits)
            }
            _ => false,
        }
    }

    /// The network of the leading bits of an address.
    pub(crate) fn of_prefix(address: IpAddr, bits: u8) -> Self {
        let address = match address {
            IpAddr::V4(address) => Ipv4Addr::from(masked_v4(address, bits.min(32))).into(),
            IpAddr::V6(address) => Ipv6Addr::from(masked_v6(address, bits.min(128))).into(),
        };
        Self { address, bits }
    }

    /// Whether it is of IPv6, and the number of bits that count.
    pub(crate) fn prefix(&self) -> (bool, u8) {
        (self.address.is_ipv6(), self.bits)
    }

    /// The only address in it; `None` if there are more.
    pub fn single_address(&self) -> Option<IpAddr> {
        (*self == Self::of_address(self.address)).then_some(self.address)
    }
}

fn masked_v4(address: Ipv4Addr, bits: u8) -> u32 {
    u32::from(address) & u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0)
}

fn masked_v6(address: Ipv6Addr, bits: u8) -> u128 {
    u128::from(address) & u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0)
}

impl FromStr for Network {
    type Err = SecurityError;

    /// Reads `192.0.2.0/24`, `2001:db8::/32`, or one address.
    fn from_str(text: &str) -> Result<Self, SecurityError> {
        let invalid = || SecurityError::Rule(format!("`{text}` is not a network such as 192.0.2.0/24"));
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits.parse::<u8>().map_err(|_| invalid())?)),
            None => (text, None),
        };
        let address = address.parse::<IpAddr>().map_err(|_| invalid())?;
        let Some(bits) = bits else { return Ok(Self::of_address(address)) };
        let (address, bits_max): (IpAddr, u8) = match address {
            IpAddr::V4(address) => (Ipv4Addr::from(masked_v4(address, bits.min(32))).into(), 32),
            IpAddr::V6(address) => (Ipv6Addr::from(masked_v6(address, bits.min(128))).into(), 128),
        };
        if bits > bits_max { Err(invalid()) } else { Ok(Self { address, bits }) }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.single_address() {
            Some(address) => write!(f, "{address}"),
            None => write!(f, "{}/{}", self.address, self.bits),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_contain_their_addresses() {
        for (network, inside, outside) in [
            ("192.0.2.0/24", "192.0.2.255", "192.0.3.0"),
            ("192.0.2.77/24", "192.0.2.1", "192.0.1.77"),
            ("0.0.0.0/0", "203.0.113.9", "::1"),
            ("::/0", "2001:db8::1", "127.0.0.1"),
            ("127.0.0.1", "::ffff:127.0.0.1", "127.0.0.2"),
            ("2001:db8::/33", "2001:db8:7fff::1", "2001:db8:8000::1"),
        ] {
            let network: Network = network.parse().unwrap();
            assert!(network.contains(inside.parse().unwrap()), "{network} {inside}");
            assert!(!network.contains(outside.parse().unwrap()), "{network} {outside}");
            assert_eq!(network.to_string().parse::<Network>().unwrap(), network);
        }
        for text in ["", "a", "192.0.2.0/33", "::/129", "192.0.2.0/", "192.0.2.0/-1", "192.0.2/24"] {
            assert!(text.parse::<Network>().is_err(), "{text}");
        }
    }
}
