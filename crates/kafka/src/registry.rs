//! The table of all APIs: what can be coded, and what the Kafka door says it serves.

use std::ops::RangeInclusive;

use crate::api::APIS;
use crate::message::Request;

/// One API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Api {
    /// Its number.
    pub key: i16,
    /// The versions that can be coded, which are all that Kafka 4.3 serves.
    pub versions: RangeInclusive<i16>,
    /// The first version with compact lengths and tagged fields; `i16::MAX` if none has them.
    pub flexible_from: i16,
    request: &'static str,
}

impl Api {
    pub(crate) const fn of<R: Request>(request: &'static str) -> Self {
        Self { key: R::KEY, versions: R::VERSIONS, flexible_from: R::FLEXIBLE_FROM, request }
    }

    /// Its name, as Kafka spells it: `ListOffsets`.
    pub fn name(&self) -> &'static str {
        self.request.strip_suffix("Request").unwrap_or(self.request)
    }

    /// The lowest and the highest version that `ApiVersions` has to name. They are those that can be coded, but for
    /// Produce: librdkafka takes its lowest version for a sign of what else a broker can do, so that Kafka 4 names
    /// version 0 (KIP-896) and ends the connection of whoever really sends a version below 3.
    pub fn announced_versions(&self) -> (i16, i16) {
        let min = if self.key == 0 { 0 } else { *self.versions.start() };
        (min, *self.versions.end())
    }
}

/// The keys that the Kafka door serves.
const ANNOUNCED: &[i16] = &[
    0, 1, 2, 3, 8, 9, 10, 11, 12, 13, 14, 15, 16, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32,
    33, 34, 35, 37, 42, 43, 44, 45, 46, 47, 48, 50, 55, 60, 61, 65, 66, 74, 75,
];

/// The API of this key, served or not.
pub fn find(key: i16) -> Option<&'static Api> {
    APIS.binary_search_by_key(&key, |api| api.key).ok().map(|index| &APIS[index])
}

/// What `ApiVersions` names, in the order of the keys.
pub fn announced() -> impl Iterator<Item = &'static Api> {
    APIS.iter().filter(|api| is_announced(api.key))
}

/// Whether the door serves this key.
pub fn is_announced(key: i16) -> bool {
    ANNOUNCED.binary_search(&key).is_ok()
}

/// Something to be done with every API, by the types of its messages.
pub trait Visitor {
    /// Is called for each.
    fn visit<R: Request>(&mut self);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_are_sorted_and_what_is_announced_exists() {
        assert!(APIS.is_sorted_by(|one, next| one.key < next.key));
        assert!(ANNOUNCED.is_sorted_by(|one, next| one < next));
        for &key in ANNOUNCED {
            assert!(find(key).is_some_and(|api| api.key == key), "{key}");
        }
        assert_eq!(announced().count(), ANNOUNCED.len());
        assert_eq!(find(-1), None);
    }

    #[test]
    fn names_are_those_of_the_protocol() {
        assert_eq!(find(23).unwrap().name(), "OffsetForLeaderEpoch");
    }

    #[test]
    fn produce_is_announced_from_version_0() {
        assert_eq!(find(0).unwrap().announced_versions(), (0, 13));
        assert_eq!(find(1).unwrap().announced_versions(), (4, 18));
    }
}
