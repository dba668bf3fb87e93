//! Changes of users and rules that clients request: handed to the host, and continued with its answer.

use std::sync::Arc;

use mainstem_runtime::Io;
use mainstem_security::{Change, ChangeError, Edit};

use crate::handlers::{alter_client_quotas, alter_user_scram_credentials, create_acls, delete_acls};
use crate::pending::AfterSecurityChange;
use crate::security::SecurityReply;
use crate::shard::Shard;
use crate::shard_message::Mail;

impl Shard {
    /// Changes users or rules, and continues when the change is durable.
    pub(crate) fn change_security(&mut self, io: &mut Io<'_, Mail>, after: AfterSecurityChange, edit: Edit) {
        let by = after.call().sender.as_ref().map(|sender| sender.actor()).unwrap_or_default();
        let Some(security) = self.env.shared().security() else {
            return self.on_security_change(io, after, &Err(ChangeError::Unavailable));
        };
        let host = Arc::clone(&security.host);
        let (me, shared) = (self.env.me(), Arc::clone(self.env.shared()));
        let on_result =
            move |result| shared.security_replies.push(me, SecurityReply::Changed { after, result });
        host.change(edit, by, Box::new(on_result));
    }

    /// A change is durable, or was refused.
    pub(crate) fn on_security_change(
        &mut self,
        io: &mut Io<'_, Mail>,
        after: AfterSecurityChange,
        result: &Result<Vec<Change>, ChangeError>,
    ) {
        match after {
            AfterSecurityChange::AlterClientQuotas { call, entries } => {
                alter_client_quotas::answer(self, io, &call, entries, result);
            }
            AfterSecurityChange::AlterUserScramCredentials { call, results } => {
                alter_user_scram_credentials::answer(self, io, &call, results, result);
            }
            AfterSecurityChange::CreateAcls { call, results } => {
                create_acls::answer(self, io, &call, results, result);
            }
            AfterSecurityChange::DeleteAcls { call, results } => {
                delete_acls::answer(self, io, &call, results, result);
            }
        }
    }
}
