//! The kinds of quotas, with Kafka's names where Kafka has them.

use std::fmt;
use std::str::FromStr;

/// A kind of quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum QuotaKey {
    /// Bytes per second of Kafka's Produce requests.
    ProducerByteRate,
    /// Bytes per second of records in Kafka's Fetch responses.
    ConsumerByteRate,
    /// Share of one shard's time that Kafka requests may take, percent. A bucket counts units of work, 100 ns each.
    RequestPercentage,
    /// Partitions that Kafka requests create and delete, per second.
    ControllerMutationRate,
    /// New connections per second.
    ConnectionCreationRate,
    /// Messages per second that MQTT clients publish.
    PublishRate,
    /// Bytes per second of MQTT's PUBLISH packets.
    PublishByteRate,
    /// HTTP requests per second.
    HttpRequestRate,
}

/// Quotas that users and client ids can have.
pub const CLIENT_KEYS: &[QuotaKey] = &[
    QuotaKey::ProducerByteRate,
    QuotaKey::ConsumerByteRate,
    QuotaKey::RequestPercentage,
    QuotaKey::ControllerMutationRate,
    QuotaKey::PublishRate,
    QuotaKey::PublishByteRate,
    QuotaKey::HttpRequestRate,
];
/// Quotas that addresses can have.
pub const ADDRESS_KEYS: &[QuotaKey] = &[QuotaKey::ConnectionCreationRate];
/// Quotas of Kafka connections.
pub const KAFKA_KEYS: &[QuotaKey] = &[
    QuotaKey::ProducerByteRate,
    QuotaKey::ConsumerByteRate,
    QuotaKey::RequestPercentage,
    QuotaKey::ControllerMutationRate,
];
/// Quotas of MQTT connections.
pub const MQTT_KEYS: &[QuotaKey] = &[QuotaKey::PublishRate, QuotaKey::PublishByteRate];
/// Quotas of HTTP requests.
pub const HTTP_KEYS: &[QuotaKey] = &[QuotaKey::HttpRequestRate];

impl QuotaKey {
    /// All kinds, in the order of their indexes.
    pub const ALL: [Self; 8] = [
        Self::ProducerByteRate,
        Self::ConsumerByteRate,
        Self::RequestPercentage,
        Self::ControllerMutationRate,
        Self::ConnectionCreationRate,
        Self::PublishRate,
        Self::PublishByteRate,
        Self::HttpRequestRate,
    ];

    /// Position in [`Self::ALL`].
    pub const fn index(self) -> usize {
        self as usize
    }

    /// The name, as in records, commands and Kafka's tools.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ProducerByteRate => "producer_byte_rate",
            Self::ConsumerByteRate => "consumer_byte_rate",
            Self::RequestPercentage => "request_percentage",
            Self::ControllerMutationRate => "controller_mutation_rate",
            Self::ConnectionCreationRate => "connection_creation_rate",
            Self::PublishRate => "publish_rate",
            Self::PublishByteRate => "publish_byte_rate",
            Self::HttpRequestRate => "http_request_rate",
        }
    }

    /// Whether values are whole numbers.
    const fn is_integral(self) -> bool {
        matches!(
            self,
            Self::ProducerByteRate
                | Self::ConsumerByteRate
                | Self::ConnectionCreationRate
                | Self::PublishByteRate
        )
    }

    /// Units per second of a bucket for a quota of 1. A share of time is counted in units of work, of 100 ns.
    pub(crate) const fn units(self) -> f64 {
        if matches!(self, Self::RequestPercentage) { 100_000.0 } else { 1.0 }
    }

    /// Whether a client that was idle may use the units of a Kafka window at once, rather than those of a short burst.
    pub(crate) const fn has_kafka_window(self) -> bool {
        matches!(
            self,
            Self::ProducerByteRate
                | Self::ConsumerByteRate
                | Self::RequestPercentage
                | Self::ControllerMutationRate
        )
    }

    /// Checks a value.
    ///
    /// # Errors
    /// What is wrong with it, in Kafka's words.
    pub fn check(self, value: f64) -> Result<(), String> {
        // The largest number of bytes below which every whole number has an exact value.
        const VALUE_MAX: f64 = 9_007_199_254_740_992.0;
        if !value.is_finite() || value <= 0.0 {
            return Err(format!("Quota {self} must be greater than 0"));
        }
        if self.is_integral() && value.fract() != 0.0 {
            return Err(format!("Quota {self} cannot be a fractional value."));
        }
        let max = if self == Self::ConnectionCreationRate { f64::from(i32::MAX) } else { VALUE_MAX };
        if value > max { Err(format!("Proposed value for {self} is too large.")) } else { Ok(()) }
    }
}

impl fmt::Display for QuotaKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for QuotaKey {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|key| key.name() == text);
        known.ok_or_else(|| format!("Invalid configuration key {text}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_indexes_identify_keys() {
        for (index, key) in QuotaKey::ALL.into_iter().enumerate() {
            assert_eq!(key.index(), index);
            assert_eq!(key.name().parse(), Ok(key));
        }
        assert!("quota".parse::<QuotaKey>().is_err());
        let client_keys: Vec<_> = [KAFKA_KEYS, MQTT_KEYS, HTTP_KEYS].concat();
        assert_eq!(client_keys, CLIENT_KEYS);
        assert_eq!(CLIENT_KEYS.len() + ADDRESS_KEYS.len(), QuotaKey::ALL.len());
    }

    #[test]
    fn values_are_positive_and_byte_rates_whole() {
        for (key, value, is_valid) in [
            (QuotaKey::ProducerByteRate, 1024.0, true),
            (QuotaKey::ProducerByteRate, 0.5, false),
            (QuotaKey::RequestPercentage, 0.5, true),
            (QuotaKey::PublishRate, 0.1, true),
            (QuotaKey::PublishRate, 0.0, false),
            (QuotaKey::PublishRate, -1.0, false),
            (QuotaKey::PublishRate, f64::NAN, false),
            (QuotaKey::PublishRate, f64::INFINITY, false),
            (QuotaKey::ConnectionCreationRate, 3e9, false),
            (QuotaKey::ConsumerByteRate, 3e9, true),
        ] {
            assert_eq!(key.check(value).is_ok(), is_valid, "{key} {value}");
        }
    }
}
