//! The owner of the log of users and rules: the thread "security".
//!
//! It takes one edit after the other, so that each is computed from the state that it changes, and publishes a state
//! when its records are on disk.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use mainstem_log::{Error, ImageFile, Store};
use mainstem_partition::{CompactedLog, KeyValue};
use mainstem_security::{
    Actor, Change, ChangeError, Edit, Published, Reply, SecurityState, Settings, User, encode,
    encode_last_rule, encode_last_use,
};

use crate::audit::Audit;
use crate::changes::security_changed;

/// How long the last use of an API key may be unstored.
const STORE_USES_INTERVAL: Duration = Duration::from_mins(1);
/// Last uses that are stored with one append.
const USES_PER_BATCH: usize = 1000;

/// The users that the configuration names.
#[derive(Clone, Debug, Default)]
pub struct ConfiguredUsers {
    /// Users of the password file.
    pub file_users: BTreeMap<Arc<str>, Arc<User>>,
    /// Users that may do everything.
    pub super_users: BTreeSet<Arc<str>>,
}

/// What the thread is asked for.
pub(crate) enum Command {
    /// An edit, and who gets its result.
    Edit { edit: Edit, by: Actor, reply: Reply<Result<Vec<Change>, ChangeError>> },
    /// Another password file or other super users. They are not stored: the configuration has them.
    ReplaceUsers { users: ConfiguredUsers, reply: Reply<()> },
    /// A directory to put an image of the log into.
    LinkImage { into: PathBuf, reply: Reply<Result<Vec<ImageFile>, Error>> },
}

/// The owner of the log.
pub(crate) struct Writer {
    pub(crate) store: Box<dyn Store>,
    pub(crate) log: CompactedLog<()>,
    pub(crate) published: Arc<Published>,
    pub(crate) audit: Option<Arc<Audit>>,
}

impl Writer {
    /// Serves commands until all senders are gone. Between them, it stores when API keys were last used.
    pub(crate) fn run(&mut self, commands: &Receiver<Command>) {
        loop {
            match commands.recv_timeout(STORE_USES_INTERVAL) {
                Ok(Command::Edit { edit, by, reply }) => reply(self.change(edit, &by)),
                Ok(Command::ReplaceUsers { users, reply }) => {
                    self.replace_users(users);
                    reply(());
                }
                Ok(Command::LinkImage { into, reply }) => reply(self.link_image(&into)),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return self.store_uses(),
            }
            self.store_uses();
        }
    }

    /// Stores when API keys were last used. What cannot be stored is noted again with the next use.
    fn store_uses(&mut self) {
        let state = self.published.state();
        loop {
            let used = self.published.api_key_uses().take_unstored(USES_PER_BATCH);
            let Some(last) = used.len().checked_sub(1) else { return };
            let mut records = Vec::with_capacity(used.len());
            for (id, at_ms) in used {
                if state.api_keys().get(id).is_some() {
                    records.push(encode_last_use(id, Some(at_ms)));
                } else {
                    // It was deleted while it was used.
                    self.published.api_key_uses().forget(id);
                }
            }
            if let Err(error) = self.append(&records) {
                log::warn!("when API keys were last used is not stored: {error}");
                return;
            }
            if last + 1 < USES_PER_BATCH {
                return;
            }
        }
    }

    /// Nothing else happens to the files meanwhile: they belong to this thread.
    fn link_image(&mut self, into: &Path) -> Result<Vec<ImageFile>, Error> {
        self.store.capture()?;
        let image = self.store.take_image()?;
        image.ok_or_else(|| Error::System("the users and rules are not durable".into()))?.link(into)
    }

    fn replace_users(&self, ConfiguredUsers { file_users, super_users }: ConfiguredUsers) {
        let state = self.published.state();
        let settings = Settings { file_users, super_users, ..state.settings().clone() };
        if settings != *state.settings() {
            self.published.publish(Arc::new(state.with_settings(settings)));
        }
    }

    fn change(&mut self, edit: Edit, by: &Actor) -> Result<Vec<Change>, ChangeError> {
        let state = self.published.state();
        let mut next = SecurityState::clone(&state);
        let mut changes = Vec::new();
        for change in edit(&state)? {
            // Each may depend on those before it: a deletion makes room.
            next.check(&change).map_err(ChangeError::Invalid)?;
            if next.apply(&change) {
                changes.push(change);
            }
        }
        if changes.is_empty() {
            return Ok(changes);
        }
        self.append(&records(&changes, &next))?;
        self.published.publish(Arc::new(next));
        for change in &changes {
            if let Change::DeleteApiKey(id) = change {
                self.published.api_key_uses().forget(*id);
            }
            if let Some(audit) = &self.audit {
                audit.add("changed", security_changed(by, &state, change));
            }
        }
        Ok(changes)
    }

    /// Appends records, all or none, and returns when they are on disk.
    fn append(&mut self, records: &[KeyValue]) -> Result<(), ChangeError> {
        if records.is_empty() {
            return Ok(());
        }
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.log.append(&mut *self.store, unix.as_millis() as u64, records, ());
        self.log.store_pending(&mut *self.store);
        self.store.commit();
        let (mut completions, mut outcomes) = (Vec::new(), Vec::new());
        self.store.completions(&mut completions);
        for completion in &completions {
            self.log.on_completion(completion, &mut outcomes);
        }
        self.log.take_failed(&mut outcomes);
        match outcomes.pop() {
            Some(((), Ok(()))) => Ok(()),
            Some(((), Err(error))) => Err(ChangeError::Log(error.to_string())),
            None => Err(ChangeError::Log("the log has not confirmed the change".to_owned())),
        }
    }
}

/// The records of changes that lead to `next`.
fn records(changes: &[Change], next: &SecurityState) -> Vec<KeyValue> {
    let deletes_rules = changes.iter().any(|change| matches!(change, Change::DeleteRule(_)));
    let last_rule = deletes_rules.then(|| encode_last_rule(next));
    let unused = changes.iter().filter_map(|change| match change {
        Change::DeleteApiKey(id) => Some(encode_last_use(*id, None)),
        _ => None,
    });
    changes.iter().map(encode).chain(unused).chain(last_rule).collect()
}

#[cfg(test)]
mod tests {
    use mainstem_log::{Durability, MemoryStore};
    use mainstem_security::{
        ApiKey, ApiKeyId, RuleId, User, add_api_key, create_user, decode_last_use, delete_user,
    };

    use super::*;

    const LOG: &str = "test";

    fn open(store: &mut dyn Store, on_record: impl FnMut(&[u8], Option<&[u8]>)) -> CompactedLog<()> {
        let log = CompactedLog::open(store, LOG, Durability::Fsync, on_record).unwrap();
        store.commit();
        log
    }

    #[test]
    fn the_last_use_of_an_api_key_is_stored_until_the_key_is_deleted() {
        let mut store: Box<dyn Store> = Box::new(MemoryStore::default());
        let log = open(&mut *store, |_, _| {});
        let published = Arc::new(Published::default());
        let mut writer = Writer { store, log, published: Arc::clone(&published), audit: None };
        let id = ApiKeyId(7);
        let key = ApiKey {
            user: "alice".into(),
            hash: [1; 32],
            roles: Vec::new(),
            description: "".into(),
            created_ms: 1,
            expires_ms: None,
        };
        let edits: [Edit; 2] = [
            Box::new(|state| create_user(state, User::new("alice").unwrap())),
            Box::new(move |state| add_api_key(state, id, key)),
        ];
        for edit in edits {
            writer.change(edit, &Actor::default()).unwrap();
        }
        published.api_key_uses().note(id, 5);
        published.api_key_uses().note(ApiKeyId(8), 6);
        writer.store_uses();
        let uses = |writer: &mut Writer| {
            let mut uses = Vec::new();
            open(&mut *writer.store, |key, value| uses.extend(decode_last_use(key, value).unwrap()));
            uses
        };
        assert_eq!(uses(&mut writer), [(id, Some(5))], "the other key does not exist");
        assert_eq!(published.api_key_uses().last(ApiKeyId(8)), None);
        writer.change(Box::new(|state| delete_user(state, "alice")), &Actor::default()).unwrap();
        assert_eq!(uses(&mut writer).last(), Some(&(id, None)));
        assert_eq!(published.api_key_uses().last(id), None);
    }

    #[test]
    fn a_deletion_of_rules_stores_the_last_identifier() {
        let mut next = SecurityState::default();
        next.note_rule_id(RuleId(4));
        let put = Change::DeleteUser("alice".into());
        assert_eq!(records(std::slice::from_ref(&put), &next), [encode(&put)]);
        let delete = Change::DeleteRule(RuleId(4));
        assert_eq!(records(std::slice::from_ref(&delete), &next), [encode(&delete), encode_last_rule(&next)]);
    }
}
