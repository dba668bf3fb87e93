//! Configurations of groups, which administrators set at run time, whether the groups exist or not.
//!
//! A configuration takes effect with the next heartbeats. If its record cannot be stored, the one before is in effect
//! again.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::changes::WriteId;
use super::response::Response;
use super::settings::NAME_MAX_BYTES;
use super::{Groups, records};
use crate::{Caller, Error, Malformed};

/// What is set for a group; `None` stands for the setting of the broker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupConfig {
    /// `consumer.session.timeout.ms`.
    pub session_timeout_ms: Option<u32>,
    /// `consumer.heartbeat.interval.ms`.
    pub heartbeat_interval_ms: Option<u32>,
}

/// The configurations of all groups that have one.
#[derive(Debug, Default)]
pub(super) struct Configurations {
    by_group: BTreeMap<Arc<str>, GroupConfig>,
    /// What was in effect before writes that are not confirmed, oldest first.
    before: Vec<(WriteId, Arc<str>, GroupConfig)>,
}

impl Configurations {
    pub(super) fn get(&self, group_id: &str) -> GroupConfig {
        self.by_group.get(group_id).copied().unwrap_or_default()
    }

    fn set(&mut self, group_id: Arc<str>, config: GroupConfig) {
        if config == GroupConfig::default() {
            self.by_group.remove(&group_id);
        } else {
            self.by_group.insert(group_id, config);
        }
    }

    pub(super) fn write_succeeded(&mut self, write: WriteId) {
        if let Some((_, group_id)) = self.take(write) {
            // An earlier write of the same configuration no longer matters if it fails later.
            self.before.retain(|(known, of, _)| *known > write || *of != group_id);
        }
    }

    pub(super) fn write_failed(&mut self, write: WriteId) {
        let Some((before, group_id)) = self.take(write) else { return };
        match self.before.iter_mut().find(|(known, of, _)| *known > write && *of == group_id) {
            Some((_, _, later)) => *later = before,
            None => self.set(group_id, before),
        }
    }

    fn take(&mut self, write: WriteId) -> Option<(GroupConfig, Arc<str>)> {
        let at = self.before.iter().position(|(known, ..)| *known == write)?;
        let (_, group_id, before) = self.before.remove(at);
        Some((before, group_id))
    }
}

impl Groups {
    /// Sets the configuration of a group. Answered once that is durable.
    pub fn handle_configure(&mut self, group_id: &str, config: GroupConfig, caller: Caller) {
        let is_new = !self.configurations.by_group.contains_key(group_id);
        let refused = if group_id.is_empty() || group_id.len() > NAME_MAX_BYTES {
            Some(Error::InvalidGroupId)
        } else if is_new && self.configurations.by_group.len() >= self.settings.groups_max {
            Some(Error::PolicyViolation)
        } else {
            None
        };
        if let Some(error) = refused {
            return self.effects.reply(caller, Response::Configure(Err(error)));
        }
        let before = self.configurations.get(group_id);
        let group_id: Arc<str> = group_id.into();
        let write = self.effects.persist(vec![records::group_config(&group_id, config)]);
        if let Some(write) = write {
            self.configurations.before.push((write, group_id.clone(), before));
        }
        self.configurations.set(group_id, config);
        self.effects.reply_when_durable(caller, Response::Configure(Ok(())));
    }

    /// The configuration of a group.
    pub fn configuration(&self, group_id: &str) -> GroupConfig {
        self.configurations.get(group_id)
    }

    /// The groups that have a configuration, by id.
    pub fn configured(&self) -> impl Iterator<Item = &Arc<str>> {
        self.configurations.by_group.keys()
    }

    pub(super) fn restore_config(&mut self, group_id: &str, value: Option<&[u8]>) -> Result<(), Malformed> {
        let config = value.map(records::read_group_config).transpose()?.unwrap_or_default();
        self.configurations.set(group_id.into(), config);
        Ok(())
    }
}
