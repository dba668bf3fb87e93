//! Quotas by entity, and which of them applies to a client.
//!
//! The most specific entity that has a quota of a kind decides, for each kind separately, in Kafka's order:
//!
//! | | user | client id | counts together |
//! |---|---|---|---|
//! | 1 | this | this | the client id of the user |
//! | 2 | this | default | the client id of the user |
//! | 3 | this | – | the user |
//! | 4 | default | this | the client id of the user |
//! | 5 | default | default | the client id of the user |
//! | 6 | default | – | the user |
//! | 7 | – | this | the client id |
//! | 8 | – | default | the client id |

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use crate::entity::{Entity, Name};
use crate::key::{ADDRESS_KEYS, CLIENT_KEYS, QuotaKey};

/// Most entities with quotas.
pub const MAX_QUOTAS: usize = 100_000;

/// The quotas of an entity.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Quotas([Option<f64>; QuotaKey::ALL.len()]);

/// Values that pass [`QuotaKey::check`] are numbers.
impl Eq for Quotas {}

/// All quotas.
#[derive(Clone, Debug, Default)]
pub struct QuotaTable {
    by_entity: BTreeMap<Entity, Quotas>,
}

/// Which clients share a quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// All clients of the user.
    User,
    /// All clients with the client id.
    ClientId,
    /// All clients of the user with the client id.
    UserClientId,
}

impl Quotas {
    /// The quota of a kind.
    pub fn get(&self, key: QuotaKey) -> Option<f64> {
        self.0[key.index()]
    }

    /// Sets or removes the quota of a kind. The value is valid by [`QuotaKey::check`].
    pub fn set(&mut self, key: QuotaKey, value: Option<f64>) {
        self.0[key.index()] = value;
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(Option::is_none)
    }

    /// The quotas that are set.
    pub fn iter(&self) -> impl Iterator<Item = (QuotaKey, f64)> {
        QuotaKey::ALL.into_iter().filter_map(|key| Some((key, self.get(key)?)))
    }

    /// Checks the quotas of an entity.
    ///
    /// # Errors
    /// A value is invalid, or the entity cannot have such a quota: what is wrong.
    pub fn check(&self, entity: &Entity) -> Result<(), String> {
        let allowed = if entity.address().is_some() { ADDRESS_KEYS } else { CLIENT_KEYS };
        for (key, value) in self.iter() {
            if !allowed.contains(&key) {
                return Err(format!("Invalid configuration key {key} for {entity}"));
            }
            key.check(value)?;
        }
        Ok(())
    }
}

impl QuotaTable {
    /// The quotas of an entity.
    pub fn get(&self, entity: &Entity) -> Option<&Quotas> {
        self.by_entity.get(entity)
    }

    /// Sets the quotas of an entity; none to remove it. Returns whether anything is different now.
    pub fn put(&mut self, entity: &Entity, quotas: Option<&Quotas>) -> bool {
        match quotas.filter(|quotas| !quotas.is_empty()) {
            Some(quotas) => self.by_entity.insert(entity.clone(), quotas.clone()).as_ref() != Some(quotas),
            None => self.by_entity.remove(entity).is_some(),
        }
    }

    /// All entities with their quotas.
    pub fn iter(&self) -> impl Iterator<Item = (&Entity, &Quotas)> {
        self.by_entity.iter()
    }

    /// Number of entities.
    pub fn len(&self) -> usize {
        self.by_entity.len()
    }

    /// Whether there is no quota.
    pub fn is_empty(&self) -> bool {
        self.by_entity.is_empty()
    }

    /// New connections per second that an address may open.
    pub fn connection_rate(&self, address: IpAddr) -> Option<u32> {
        if self.is_empty() {
            return None;
        }
        let exact = Entity::Address(Some(address.to_canonical()));
        let mut entities = [exact, Entity::Address(None)].into_iter();
        let rate = entities.find_map(|entity| self.get(&entity)?.get(QuotaKey::ConnectionCreationRate))?;
        #[expect(clippy::cast_sign_loss, reason = "checked: a whole number from 1 to i32::MAX")]
        Some(rate as u32)
    }

    /// The entities that may have a quota for a client, most specific first, and who shares it.
    pub(crate) fn candidates(&self, user: &str, client_id: &str) -> Vec<(&Quotas, Sharing)> {
        if self.is_empty() {
            return Vec::new();
        }
        let exact = |name: &str| Name::Exact(Arc::from(name));
        let (user, client_id) = (exact(user), exact(client_id));
        let both = |user: &Name, client_id: &Name| {
            (Entity::UserClientId(user.clone(), client_id.clone()), Sharing::UserClientId)
        };
        let entities = [
            both(&user, &client_id),
            both(&user, &Name::Default),
            (Entity::User(user), Sharing::User),
            both(&Name::Default, &client_id),
            both(&Name::Default, &Name::Default),
            (Entity::User(Name::Default), Sharing::User),
            (Entity::ClientId(client_id), Sharing::ClientId),
            (Entity::ClientId(Name::Default), Sharing::ClientId),
        ];
        let known = entities.into_iter().filter_map(|(entity, sharing)| Some((self.get(&entity)?, sharing)));
        known.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        if text == "*" { Name::Default } else { Name::Exact(text.into()) }
    }

    fn quotas(key: QuotaKey, value: f64) -> Quotas {
        let mut quotas = Quotas::default();
        quotas.set(key, Some(value));
        quotas
    }

    fn decides(table: &QuotaTable, user: &str, client_id: &str) -> Option<(f64, Sharing)> {
        let mut candidates = table.candidates(user, client_id).into_iter();
        candidates.find_map(|(quotas, sharing)| Some((quotas.get(QuotaKey::PublishRate)?, sharing)))
    }

    /// Removes the deciding entity again and again: the next one in the order of Kafka's documentation decides.
    #[test]
    fn the_most_specific_entity_decides() {
        let order = [
            (Entity::UserClientId(name("u"), name("c")), Sharing::UserClientId),
            (Entity::UserClientId(name("u"), name("*")), Sharing::UserClientId),
            (Entity::User(name("u")), Sharing::User),
            (Entity::UserClientId(name("*"), name("c")), Sharing::UserClientId),
            (Entity::UserClientId(name("*"), name("*")), Sharing::UserClientId),
            (Entity::User(name("*")), Sharing::User),
            (Entity::ClientId(name("c")), Sharing::ClientId),
            (Entity::ClientId(name("*")), Sharing::ClientId),
        ];
        let mut table = QuotaTable::default();
        for (rank, (entity, _)) in (1_u8..).zip(&order) {
            assert!(table.put(entity, Some(&quotas(QuotaKey::PublishRate, rank.into()))));
        }
        for (rank, (entity, sharing)) in (1_u8..).zip(&order) {
            assert_eq!(decides(&table, "u", "c"), Some((rank.into(), *sharing)));
            // A quota of another kind does not hide those of less specific entities.
            assert!(table.put(entity, Some(&quotas(QuotaKey::ConsumerByteRate, 1.0))));
        }
        assert_eq!(decides(&table, "u", "c"), None);
    }

    #[test]
    fn others_get_defaults_only() {
        let mut table = QuotaTable::default();
        table.put(&Entity::User(name("u")), Some(&quotas(QuotaKey::PublishRate, 1.0)));
        assert_eq!(decides(&table, "v", "c"), None);
        table.put(&Entity::User(Name::Default), Some(&quotas(QuotaKey::PublishRate, 2.0)));
        assert_eq!(decides(&table, "v", "c"), Some((2.0, Sharing::User)));
        let address: IpAddr = "192.0.2.1".parse().unwrap();
        assert_eq!(table.connection_rate(address), None);
        let rate = |value| quotas(QuotaKey::ConnectionCreationRate, value);
        table.put(&Entity::Address(None), Some(&rate(5.0)));
        assert_eq!(table.connection_rate(address), Some(5));
        table.put(&Entity::Address(Some(address)), Some(&rate(7.0)));
        assert_eq!(table.connection_rate("::ffff:192.0.2.1".parse().unwrap()), Some(7));
    }

    #[test]
    fn changes_are_idempotent_and_empty_quotas_are_none() {
        let mut table = QuotaTable::default();
        let entity = Entity::ClientId(name("c"));
        assert!(table.put(&entity, Some(&quotas(QuotaKey::PublishRate, 1.0))));
        assert!(!table.put(&entity, Some(&quotas(QuotaKey::PublishRate, 1.0))));
        assert!(table.put(&entity, Some(&Quotas::default())));
        assert!(!table.put(&entity, None));
        assert!(table.is_empty());
    }

    #[test]
    fn addresses_have_other_quotas_than_clients() {
        let address = Entity::Address(None);
        assert!(quotas(QuotaKey::ConnectionCreationRate, 1.0).check(&address).is_ok());
        assert!(quotas(QuotaKey::PublishRate, 1.0).check(&address).is_err());
        let user = Entity::User(Name::Default);
        assert!(quotas(QuotaKey::ConnectionCreationRate, 1.0).check(&user).is_err());
        assert!(quotas(QuotaKey::PublishByteRate, 0.5).check(&user).is_err());
    }
}
